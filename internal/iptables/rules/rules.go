// Package rules reads the rules that "iptables -S" prints, with iptables' own quoting, which is not that of a
// shell: a word with an unusual character stands in double quotes, inside which a backslash precedes every double
// quote, single quote and backslash. Line breaks stay as they are, so one rule can take several lines.
package rules

import (
	"errors"
	"fmt"
	"strings"
)

// Listing is what "iptables -S" says about one table.
type Listing struct {
	Chains []string // built-in chains and others, in the order printed
	Rules  []Rule   // in the order printed
}

// Rule is one rule of a chain.
type Rule struct {
	Chain string
	// Spec are the arguments that, after "-D <chain>", delete exactly this rule.
	Spec []string
}

// texts are the options whose argument is free text, which may look like an option itself.
var texts = map[string]bool{
	"--comment":      true,
	"--log-prefix":   true,
	"--nflog-prefix": true,
	"--ulog-prefix":  true,
	"--string":       true,
	"--name":         true,
}

// Value returns the argument of an option in the spelling that iptables prints, such as "-s" or "--comment". It
// is "" when the rule does not have the option or has it negated.
func (r Rule) Value(option string) string {
	for i := 0; i+1 < len(r.Spec); i++ {
		word := r.Spec[i]
		switch {
		case word == option:
			return r.Spec[i+1]
		case word == "!" || texts[word]:
			i++
		}
	}
	return ""
}

// String is the rule on one line, as "iptables -S" prints it up to the quoting of harmless words.
func (r Rule) String() string {
	words := []string{"-A", Quote(r.Chain)}
	for _, word := range r.Spec {
		words = append(words, Quote(word))
	}
	return strings.Join(words, " ")
}

// Quote makes one word of a listing out of any text.
func Quote(text string) string {
	if text != "" && !strings.ContainsAny(text, " \n\"'\\") {
		return text
	}
	return `"` + strings.NewReplacer(`"`, `\"`, `'`, `\'`, `\`, `\\`).Replace(text) + `"`
}

// Parse reads the output of "iptables -S", split at line breaks or not. What it cannot read it leaves out and
// reports in the error; the rest of the listing is valid all the same.
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

// add takes one statement into the listing.
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

// cut reads one statement and returns its words and the text behind it. After an error reading goes on at the
// next line.
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

// cutWord reads the word that text, which is not empty, begins with.
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
