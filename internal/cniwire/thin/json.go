package thin

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds how deep values may be nested.
const maxDepth = 1000

// Members calls each with the members of the object that data is, in their order. It
// reports whether data is one, and nothing else; the values are valid JSON then, and
// parts of data. Keys with an escape that only JSON knows are passed over.
func Members(data []byte, each func(key string, value []byte)) bool {
	s := &scanner{data: data}
	s.space()
	if s.peek() != '{' || !s.object(0, each) {
		return false
	}
	s.space()
	return s.at == len(data)
}

// Text is the string that a JSON value is. It is not ok where the value is another,
// or has an escape that only JSON knows.
func Text(value []byte) (text string, ok bool) {
	if len(value) == 0 || value[0] != '"' {
		return "", false
	}
	text, err := strconv.Unquote(string(value))
	return text, err == nil
}

// scanner goes through JSON, of which at was read.
type scanner struct {
	data []byte
	at   int
}

// peek is the next byte; 0, which JSON has nowhere, at the end.
func (s *scanner) peek() byte {
	if s.at < len(s.data) {
		return s.data[s.at]
	}
	return 0
}

func (s *scanner) space() {
	for strings.IndexByte(" \t\r\n", s.peek()) >= 0 {
		s.at++
	}
}

// is reads one byte, if it is that.
func (s *scanner) is(b byte) bool {
	if s.peek() != b {
		return false
	}
	s.at++
	return true
}

func (s *scanner) value(depth int) bool {
	switch s.peek() {
	case '{':
		return s.object(depth, func(string, []byte) {})
	case '[':
		return s.list(depth, ']', func() bool { return s.value(depth + 1) })
	case '"':
		return s.text()
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	return s.number()
}

// list reads what stands between two brackets, with commas in between.
func (s *scanner) list(depth int, end byte, one func() bool) bool {
	if depth >= maxDepth {
		return false
	}
	s.at++
	s.space()
	if s.is(end) {
		return true
	}
	for {
		s.space()
		if !one() {
			return false
		}
		s.space()
		if s.is(end) {
			return true
		}
		if !s.is(',') {
			return false
		}
	}
}

func (s *scanner) object(depth int, each func(key string, value []byte)) bool {
	return s.list(depth, '}', func() bool {
		from := s.at
		if s.peek() != '"' || !s.text() {
			return false
		}
		key, known := Text(s.data[from:s.at])
		s.space()
		if !s.is(':') {
			return false
		}
		s.space()
		from = s.at
		if !s.value(depth + 1) {
			return false
		}
		if known {
			each(key, s.data[from:s.at])
		}
		return true
	})
}

func (s *scanner) text() bool {
	for s.at++; s.at < len(s.data); s.at++ {
		switch b := s.data[s.at]; {
		case b == '"':
			s.at++
			return true
		case b < ' ':
			return false
		case b == '\\':
			s.at++
			if s.peek() == 'u' {
				if !s.hex() {
					return false
				}
			} else if strings.IndexByte(`"\/bfnrt`, s.peek()) < 0 {
				return false
			}
		}
	}
	return false
}

// hex reads the four digits behind a u, but for the last one.
func (s *scanner) hex() bool {
	for range 4 {
		s.at++
		if strings.IndexByte("0123456789abcdefABCDEF", s.peek()) < 0 {
			return false
		}
	}
	return true
}

func (s *scanner) word(word string) bool {
	if !strings.HasPrefix(string(s.data[s.at:min(s.at+len(word), len(s.data))]), word) {
		return false
	}
	s.at += len(word)
	return true
}

func (s *scanner) number() bool {
	s.is('-')
	if !s.is('0') && !s.digits() {
		return false
	}
	if s.is('.') && !s.digits() {
		return false
	}
	if s.is('e') || s.is('E') {
		_ = s.is('+') || s.is('-')
		return s.digits()
	}
	return true
}

func (s *scanner) digits() bool {
	from := s.at
	for s.peek() >= '0' && s.peek() <= '9' {
		s.at++
	}
	return s.at > from
}

// quote appends a text as JSON has it. What is not UTF-8 is replaced.
func quote(to []byte, text string) []byte {
	const digits = "0123456789abcdef"
	to = append(to, '"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			to = append(to, '\\', byte(r))
		case r < ' ':
			to = append(to, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			to = utf8.AppendRune(to, r)
		}
	}
	return append(to, '"')
}
