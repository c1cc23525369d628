package iptables

import "strings"

// Rule is one rule of a chain.
type Rule struct {
	Chain string
	// Spec contains the arguments that, after "-D <chain>", delete exactly this
	// rule.
	Spec []string
}

// texts contains the options whose argument is free text, which may look like an
// option.
var texts = map[string]bool{
	"--comment":      true,
	"--log-prefix":   true,
	"--nflog-prefix": true,
	"--ulog-prefix":  true,
	"--string":       true,
	"--name":         true,
}

// Value returns the argument of an option in the spelling that iptables prints,
// such as "-s" or "--comment". It is "" when the rule does not have the option or
// has it negated.
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

// String returns the rule on one line, as "iptables -S" prints it. Words that iptables
// quotes without need may lack the quotes.
func (r Rule) String() string {
	words := []string{"-A", Quote(r.Chain)}
	for _, word := range r.Spec {
		words = append(words, Quote(word))
	}
	return strings.Join(words, " ")
}

// Quote returns a text as one word of a listing.
func Quote(text string) string {
	if text != "" && !strings.ContainsAny(text, " \n\"'\\") {
		return text
	}
	return `"` + strings.NewReplacer(`"`, `\"`, `'`, `\'`, `\`, `\\`).Replace(text) + `"`
}
