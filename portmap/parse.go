package portmap

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// example is part of every error of Parse.
const example = "http=127.0.0.1:8080:80/tcp"

// Parse reads a port in the notation of a command line:
//
//	[label=][hostIP:]hostPort[-endPort][:containerPort[-endPort]][/protocol[+protocol...]]
//
// An IPv6 host IP stands in brackets. Both ranges have the same length. The
// label ends at the last '='. Examples:
//
//	8080
//	8080:80
//	http=127.0.0.1:8080:80/tcp
//	[::1]:8080:80/tcp+udp
//	9000-9010:80-90/sctp
//	0:80
//
// Without a protocol, a port is published for TCP and UDP. Host port 0 stands for one that
// Setup picks. Mappings accepts every other port that Parse returns. The error names the
// invalid part and shows an example; the error that it wraps only names the part.
func Parse(s string) (Port, error) {
	p, err := parsePort(s)
	if err != nil {
		var number *numberError
		also := ""
		if errors.As(err, &number) && number.part == hostPortPart {
			also = ", or 0 for a free host port"
		}
		return Port{}, fmt.Errorf("parse port %q: %w%s; an example is %s", s, err, also, example)
	}
	return p, nil
}

// String returns the port in the notation that Parse reads. Parse of the text returns
// the same port if the port came from Parse, and a port with the same mappings if
// Mappings accepts the port.
func (p Port) String() string {
	var b strings.Builder
	if p.Label != "" {
		b.WriteString(p.Label + "=")
	}
	switch {
	case strings.Contains(p.HostIP, ":"):
		b.WriteString("[" + p.HostIP + "]:")
	case p.HostIP != "":
		b.WriteString(p.HostIP + ":")
	}
	b.WriteString(formatRange(p.Value, p.Range))
	if p.To > 0 {
		b.WriteString(":" + formatRange(p.To, p.Range))
	}
	if len(p.Protocols) > 0 {
		b.WriteString("/" + strings.Join(p.Protocols, "+"))
	}
	return b.String()
}

func formatRange(first, count int) string {
	if count < 2 {
		return strconv.Itoa(first)
	}
	return fmt.Sprintf("%d-%d", first, first+count-1)
}

// parsePort splits s into label, host IP, ports and protocols, and parses them.
func parsePort(s string) (p Port, err error) {
	rest := s
	if i := strings.LastIndexByte(s, '='); i >= 0 {
		p.Label, rest = s[:i], s[i+1:]
		if p.Label == "" {
			return p, errors.New(`label before "=" is empty`)
		}
	}
	rest, list, found := strings.Cut(rest, "/")
	if found {
		if p.Protocols, err = parseProtocols(list); err != nil {
			return p, err
		}
	}
	if p.HostIP, rest, err = cutHostIP(rest); err != nil {
		return p, err
	}
	return parsePorts(p, rest)
}

func parseProtocols(list string) ([]string, error) {
	known, unknown := normalizeProtocols(strings.Split(list, "+"))
	if len(unknown) > 0 {
		return nil, fmt.Errorf("protocol %q %s", unknown[0], wantProtocol)
	}
	return known, nil
}

// cutHostIP splits s into the host IP, which may be missing, and the ports.
func cutHostIP(s string) (ip, ports string, err error) {
	switch inside, ok := strings.CutPrefix(s, "["); {
	case ok:
		if ip, ports, ok = strings.Cut(inside, "]:"); !ok {
			return "", "", errors.New(`host IP in brackets must end with "]:"`)
		}
	case hasHostIP(s):
		ip, ports, _ = strings.Cut(s, ":")
	default:
		return "", s, nil
	}
	if ip == "" {
		return "", "", errors.New("host IP is empty; IPv6 goes in brackets")
	}
	normal, err := normalizeHostIP(ip)
	if err != nil {
		return "", "", fmt.Errorf("host IP %q %w; IPv6 goes in brackets", ip, err)
	}
	return normal, ports, nil
}

// hasHostIP reports whether a text without brackets begins with a host IP. A single
// colon may also separate the host port and the container port.
func hasHostIP(s string) bool {
	first, rest, found := strings.Cut(s, ":")
	return found && (looksLikeAddress(first) || strings.Contains(rest, ":"))
}

// looksLikeAddress also accepts host names, so that the error for a host name concerns
// the host IP.
func looksLikeAddress(s string) bool {
	return strings.Contains(s, ".") || s != "" && (s[0] < '0' || s[0] > '9') && s[0] != '-'
}

// unnumbered stands for a host port that is picked later.
const unnumbered = "0"

// hostPortPart is the part of a port in errors that also accepts unnumbered.
const hostPortPart = "host port"

// numberError is the error of a number that is not one of a port.
type numberError struct{ part, text string }

func (e *numberError) Error() string { return fmt.Sprintf("%s %q %s", e.part, e.text, wantPort) }

// parsePorts reads hostPort[-endPort][:containerPort[-endPort]] into p.
func parsePorts(p Port, s string) (Port, error) {
	host, container, found := strings.Cut(s, ":")
	value, count, err := 0, 1, error(nil)
	switch {
	case strings.HasPrefix(host, unnumbered+"-"):
		err = fmt.Errorf("host port %q must not be a range: 0 stands for one free host port", host)
	case host != unnumbered:
		value, count, err = parseRange(hostPortPart, host)
	}
	if err != nil {
		return p, err
	}
	p.Value = value
	if count > 1 {
		p.Range = count
	}
	if !found {
		return p, nil
	}
	to, n, err := parseRange("container port", container)
	if err != nil {
		return p, err
	}
	if n != count {
		return p, fmt.Errorf("container port %q must be a range as long as host port %q", container, host)
	}
	p.To = to
	return p, nil
}

// parseRange reads first[-last]. The errors name part.
func parseRange(part, s string) (first, count int, err error) {
	start, end, found := strings.Cut(s, "-")
	if first, err = parseNumber(part, start); err != nil || !found {
		return first, 1, err
	}
	last, err := parseNumber("end of "+part, end)
	if err != nil {
		return 0, 0, err
	}
	if last < first {
		return 0, 0, fmt.Errorf("end of %s %q must not be less than %d", part, end, first)
	}
	return first, last - first + 1, nil
}

func parseNumber(part, s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, &numberError{part, s}
	}
	return int(n), nil
}
