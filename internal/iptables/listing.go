package iptables

import (
	"errors"
	"fmt"
	"strings"
)

// Listing is the output of "iptables -S" for one table.
type Listing struct {
	Chains []string // built-in chains and others, in the order printed
	Rules  []Rule   // in the order printed
}

// Parse reads the output of "iptables -S", which may be split at line breaks. It leaves
// out statements that it cannot read and reports them in the error; the rest of the
// listing is valid all the same.
//
// The quoting is that of iptables, not that of a shell: a word with an unusual
// character is in double quotes, inside which a backslash precedes every double quote,
// single quote and backslash. Line breaks are not escaped, so one rule can take several
// lines.
func Parse(lines []string) (Listing, error) {
	var (
		listing Listing
		errs    []error
		text    = strings.Join(lines, "\n")
	)
	for text != "" {
		statement, rest, err := cut(text)
		if err == nil {
			err = listing.add(statement)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("parse %q: %w", text[:len(text)-len(rest)], err))
		}
		text = rest
	}
	return listing, errors.Join(errs...)
}

var (
	errQuote     = errors.New("misplaced or missing quote")
	errStatement = errors.New("not a statement of a listing")
)

// add adds one statement to the listing.
func (l *Listing) add(words []string) error {
	switch {
	case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		return nil
	case len(words) < 2:
		return errStatement
	case words[0] == "-P" || words[0] == "-N":
		l.Chains = append(l.Chains, words[1])
	case words[0] == "-A":
		l.Rules = append(l.Rules, Rule{Chain: words[1], Spec: words[2:]})
	default:
		return errStatement
	}
	return nil
}

// cut reads one statement, and returns its words and the text that follows it. After an
// error, the returned text begins at the next line.
func cut(text string) (words []string, rest string, err error) {
	rest = text
	for rest != "" {
		switch rest[0] {
		case '\n':
			return words, rest[1:], nil
		case ' ':
			rest = rest[1:]
			continue
		}
		var word string
		if word, rest, err = cutWord(rest); err != nil {
			_, rest, _ = strings.Cut(text, "\n")
			return nil, rest, err
		}
		words = append(words, word)
	}
	return words, "", nil
}

// cutWord reads the first word of text, which must not be empty.
func cutWord(text string) (word, rest string, err error) {
	if text[0] != '"' {
		end := strings.IndexAny(text, " \n")
		if end < 0 {
			end = len(text)
		}
		return text[:end], text[end:], nil
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			if i++; i < len(text) {
				b.WriteByte(text[i])
			}
		case '"':
			rest = text[i+1:]
			if rest != "" && rest[0] != ' ' && rest[0] != '\n' {
				return "", "", errQuote
			}
			return b.String(), rest, nil
		default:
			b.WriteByte(text[i])
		}
	}
	return "", "", errQuote
}
