package thin

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"strings"
)

const (
	maxLine   = 4 << 10 // of the head of an answer, or in front of a chunk
	maxFields = 64
)

// readAnswer reads an answer of HTTP/1.1. Its body has a Content-Length or is
// chunked; it is read to its end, and an answer that is cut short is ErrAway.
func readAnswer(r io.Reader) (status int, body []byte, err error) {
	a := &answer{bufio.NewReaderSize(r, maxLine)}
	status, err = a.status()
	length := int64(unknownLength)
	if err == nil {
		length, err = a.fields()
	}
	switch {
	case err != nil:
	case length == chunked:
		body, err = a.chunks()
	default:
		body, err = a.take(nil, length)
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil, away("it ended before the answer did")
	case err != nil:
		return 0, nil, err
	}
	return status, body, nil
}

// What a length can be beside a number of bytes.
const (
	unknownLength = -1
	chunked       = -2
)

// answer is what has not been read of one.
type answer struct{ *bufio.Reader }

// line is the next line, without its end.
func (a *answer) line() (string, error) {
	line, err := a.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", garbled("a line is too long")
	}
	if err != nil {
		return "", err
	}
	text, ok := strings.CutSuffix(string(line), "\r\n")
	if !ok {
		return "", garbled("a line does not end as in HTTP")
	}
	return text, nil
}

func (a *answer) status() (int, error) {
	line, err := a.line()
	if err != nil {
		return 0, err
	}
	rest, ok := strings.CutPrefix(line, "HTTP/1.1 ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.ParseUint(code, 10, 16)
	if !ok || err != nil || len(code) != 3 || status < 200 {
		return 0, garbled("no status line of HTTP/1.1")
	}
	return int(status), nil
}

// fields reads the head and returns the length of the body.
func (a *answer) fields() (int64, error) {
	length := int64(unknownLength)
	for range maxFields {
		line, err := a.line()
		if err != nil {
			return 0, err
		}
		if line == "" {
			if length == unknownLength {
				return 0, garbled("the length of the body is not said")
			}
			return length, nil
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return 0, garbled("a header field has no value")
		}
		this, err := lengthOf(name, strings.TrimSpace(value))
		if err != nil {
			return 0, err
		}
		if this == unknownLength {
			continue
		}
		if length != unknownLength {
			return 0, garbled("the length of the body is said twice")
		}
		length = this
	}
	return 0, garbled("too many header fields")
}

// lengthOf is what a header field says of the length of the body.
func lengthOf(name, value string) (int64, error) {
	switch {
	case strings.EqualFold(name, "Content-Length"):
		n, err := strconv.ParseUint(value, 10, 62)
		if err != nil {
			return 0, garbled("Content-Length is no number")
		}
		return int64(n), nil
	case strings.EqualFold(name, "Transfer-Encoding"):
		if !strings.EqualFold(value, "chunked") {
			return 0, garbled("an unknown transfer encoding")
		}
		return chunked, nil
	}
	return unknownLength, nil
}

func (a *answer) chunks() ([]byte, error) {
	var body []byte
	for {
		line, err := a.line()
		if err != nil {
			return nil, err
		}
		size, err := strconv.ParseUint(line, 16, 62)
		if err != nil {
			return nil, garbled("the size of a chunk is no number")
		}
		if size > 0 {
			if body, err = a.take(body, int64(size)); err != nil {
				return nil, err
			}
		}
		if line, err = a.line(); err != nil {
			return nil, err
		}
		if line != "" {
			return nil, garbled("something follows a chunk")
		}
		if size == 0 {
			return body, nil
		}
	}
}

// take appends size bytes.
func (a *answer) take(body []byte, size int64) ([]byte, error) {
	if size > MaxResponse-int64(len(body)) {
		return nil, garbled("the answer is too long")
	}
	at := len(body)
	body = append(body, make([]byte, size)...)
	_, err := io.ReadFull(a, body[at:])
	return body, err
}
