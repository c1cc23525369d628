package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
)

// kind is the syntax of a value in the file.
type kind string

const (
	text    kind = `text in quotes`
	number  kind = `a whole number without quotes`
	boolean kind = `true or false`
	texts   kind = `a list of texts in quotes`
)

// value is a field of Settings that is read and written as text.
type value interface {
	// set takes one text, or any number for a list.
	set(texts []string) error
	// get is the reverse of set.
	get() []string
	kind() kind
	// split splits the text of a flag or variable into the texts for set.
	split(text string) []string
}

// parser parses one text. Its error continues a sentence that begins with the text.
type parser[T any] func(text string) (T, error)

type scalar[T any] struct {
	to     *T
	parse  parser[T]
	format func(T) string
	is     kind
}

func (v scalar[T]) set(texts []string) error {
	if len(texts) != 1 {
		return errors.New("give one value")
	}
	got, err := v.parse(texts[0])
	if err != nil {
		return fmt.Errorf("%q %w", texts[0], err)
	}
	*v.to = got
	return nil
}

func (v scalar[T]) get() []string           { return []string{v.format(*v.to)} }
func (v scalar[T]) kind() kind              { return v.is }
func (v scalar[T]) split(s string) []string { return []string{s} }

type list[T any] struct {
	to        *[]T
	parse     parser[T]
	format    func(T) string
	separator string
	check     func([]T) error // validates the whole list
}

func (v list[T]) set(texts []string) error {
	var got []T
	var errs []error
	for _, t := range texts {
		one, err := v.parse(t)
		if err != nil {
			errs = append(errs, fmt.Errorf("%q %w", t, err))
		}
		got = append(got, one)
	}
	if len(errs) == 0 {
		errs = append(errs, v.check(got))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	*v.to = got
	return nil
}

func (v list[T]) get() []string {
	got := []string{}
	for _, one := range *v.to {
		got = append(got, v.format(one))
	}
	return got
}

func (v list[T]) kind() kind { return texts }

func (v list[T]) split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, v.separator)
}

func textOf[T ~string](to *T, parse parser[T]) value {
	return scalar[T]{to, parse, func(t T) string { return string(t) }, text}
}

func listOf(to *[]string, parse parser[string], separator string) value {
	return list[string]{to, parse, func(t string) string { return t }, separator, unlike}
}

func boolOf(to *bool) value {
	parse := func(t string) (bool, error) {
		b, err := strconv.ParseBool(t)
		if err != nil {
			return false, errors.New("is neither true nor false")
		}
		return b, nil
	}
	return scalar[bool]{to, parse, strconv.FormatBool, boolean}
}

func intOf(to *int, least, most int) value {
	parse := func(t string) (int, error) {
		n, err := strconv.Atoi(t)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("is not a whole number from %d to %d", least, most)
		}
		return n, nil
	}
	return scalar[int]{to, parse, strconv.Itoa, number}
}

func routeTableOf(to *uint32) value {
	parse := func(t string) (uint32, error) {
		n, err := strconv.ParseUint(t, 10, 32)
		if err != nil || n != 0 && announce.Validate(uint32(n), announce.DefaultProtocol) != nil {
			return 0, errors.New("is not a routing table for a routing daemon: use a number up to 4294967295, other than 253 to 255, or 0 for none")
		}
		return uint32(n), nil
	}
	return scalar[uint32]{to, parse, func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }, number}
}

func routeProtocolOf(to *uint8) value {
	parse := func(t string) (uint8, error) {
		const table = 100 // any
		n, err := strconv.ParseUint(t, 10, 8)
		if err != nil || announce.Validate(table, uint8(n)) != nil {
			return 0, errors.New("is not a free protocol of routes: use a number from 5 to 255 that no other program uses (not 8 to 18, 42, 84, 99 and 186 to 198)")
		}
		return uint8(n), nil
	}
	return scalar[uint8]{to, parse, func(n uint8) string { return strconv.Itoa(int(n)) }, number}
}

// maxDuration keeps sums of durations from overflowing.
const maxDuration = 1000 * time.Hour

func durationOf(to *time.Duration, least time.Duration) value {
	parse := func(t string) (time.Duration, error) {
		d, err := time.ParseDuration(t)
		switch {
		case err != nil:
			return 0, errors.New(`is not a duration: write it with its unit, such as "5s" or "1m30s"`)
		case d < least:
			return 0, errors.New("is too short")
		case d > maxDuration:
			return 0, fmt.Errorf("is too long: at most %s", formatDuration(maxDuration))
		}
		return d, nil
	}
	return scalar[time.Duration]{to, parse, formatDuration, text}
}

// formatDuration omits zero units: it returns 1m for Go's 1m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

func sizeOf(to *int64, least, most int64) value {
	parse := func(t string) (int64, error) {
		for _, u := range sizeUnits {
			digits, found := strings.CutSuffix(t, u.name)
			if !found {
				continue
			}
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil || n < 0 || n > most/u.bytes || n*u.bytes < least {
				break
			}
			return n * u.bytes, nil
		}
		return 0, fmt.Errorf(`is not a size from %s to %s: write it with its unit, such as "512KiB" or "1MiB"`, formatSize(least), formatSize(most))
	}
	return scalar[int64]{to, parse, formatSize, text}
}

func formatSize(n int64) string {
	for _, u := range sizeUnits {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

func modeOf(to *fs.FileMode) value {
	parse := func(t string) (fs.FileMode, error) {
		n, err := strconv.ParseUint(t, 8, 32)
		if err != nil || n > 0o777 {
			return 0, errors.New(`are not octal permissions: write for example "0660"`)
		}
		return fs.FileMode(n), nil
	}
	return scalar[fs.FileMode]{to, parse, func(m fs.FileMode) string { return fmt.Sprintf("%04o", m) }, text}
}

func levelOf(to *hclog.Level) value {
	parse := func(t string) (hclog.Level, error) {
		l := hclog.LevelFromString(t)
		if l == hclog.NoLevel {
			return l, errors.New("is not a level: write trace, debug, info, warn, error or off")
		}
		return l, nil
	}
	return scalar[hclog.Level]{to, parse, hclog.Level.String, text}
}

func poolsOf(to *[]configurator.Pool) value {
	parse := func(t string) (configurator.Pool, error) {
		name, number, _ := strings.Cut(t, "=")
		size, err := strconv.Atoi(number)
		if _, nameErr := networkName(name); err != nil || nameErr != nil || size < 0 || size > configurator.MaxPool {
			return configurator.Pool{}, fmt.Errorf(`is not a network and a number from 0 to %d: write for example "web=32"`, configurator.MaxPool)
		}
		return configurator.Pool{Network: name, Size: size}, nil
	}
	format := func(p configurator.Pool) string { return fmt.Sprintf("%s=%d", p.Network, p.Size) }
	check := func(pools []configurator.Pool) error {
		var networks []string
		for _, p := range pools {
			networks = append(networks, p.Network)
		}
		return unlike(networks)
	}
	return list[configurator.Pool]{to, parse, format, ",", check}
}

func labelSourcesOf(to *[]LabelSource) value {
	parse := func(t string) (LabelSource, error) {
		key, argument, _ := strings.Cut(t, "=")
		if err := errors.Join(names.ValidateLabelKey(key), names.ValidateArgument(argument)); err != nil {
			return LabelSource{}, errors.New(`is not a label and the name of one of CNI_ARGS: write for example "job=NOMAD_JOB_ID"`)
		}
		return LabelSource{key, argument}, nil
	}
	format := func(s LabelSource) string { return s.Key + "=" + s.Argument }
	check := func(sources []LabelSource) error {
		var keys []string
		for _, s := range sources {
			keys = append(keys, s.Key)
		}
		return unlike(keys)
	}
	return list[LabelSource]{to, parse, format, ",", check}
}

func prefixesOf(to *[]netip.Prefix) value {
	return list[netip.Prefix]{to, prefix, netip.Prefix.String, ",", subnets}
}

func portRangeOf(to *configurator.PortRange) value {
	parse := func(t string) (configurator.PortRange, error) {
		r, err := configurator.ParsePortRange(t)
		if err != nil {
			err = errors.New(`is not a range of ports: write for example "20000-32000"`)
		}
		return r, err
	}
	return scalar[configurator.PortRange]{to, parse, configurator.PortRange.String, text}
}

func networksOf(to *[]netip.Prefix) value {
	return list[netip.Prefix]{to, prefix, netip.Prefix.String, ",", clusterNetworks}
}

func prefix(t string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(t)
	if err != nil {
		return p, errors.New(`is not a subnet: write for example "10.202.0.0/16"`)
	}
	return p, nil
}
