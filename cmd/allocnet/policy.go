package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/policy/networkpolicy"
)

func newPolicy(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Check and explain network policies",
		Long: `Check and explain network policies, which say what traffic to and from allocations is
allowed. Set one with ` + "`allocnet setup --policy`" + ` or ` + "`allocnet set --policy`" + `.

A POLICY is the path of a file in JSON, - for standard input, or a list of presets
separated by commas:
` + presetsHelp(),
		Example: `  allocnet policy check web.json
  allocnet policy explain web --to db tcp/5432
  allocnet policy denied web`,
		Args: cobra.NoArgs,
		RunE: a.runSubcommand,
	}
	c.AddCommand(newPolicyCheck(a), newPolicyExplain(a), newPolicyDenied(a), newPolicyTranslate(a))
	return c
}

func presetsHelp() string {
	var b strings.Builder
	for _, p := range netpolicy.Presets {
		fmt.Fprintf(&b, "  %-12s  %s\n", p.Name, p.Does)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// policyFlag adds the flag --policy.
func policyFlag(c *cobra.Command, to *string, usage string) {
	c.Flags().StringVar(to, "policy", "", usage)
	_ = c.RegisterFlagCompletionFunc("policy", completePolicies)
}

// completePolicies completes lists of presets, and else files.
func completePolicies(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	at := strings.LastIndex(prefix, ",") + 1
	given := strings.Split(prefix[:at], ",")
	var list []cobra.Completion
	for _, p := range netpolicy.Presets {
		if name := string(p.Name); strings.HasPrefix(name, prefix[at:]) && !slices.Contains(given, name) {
			list = append(list, cobra.CompletionWithDesc(prefix[:at]+name, p.Does))
		}
	}
	if len(list) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return list, cobra.ShellCompDirectiveNoSpace
}

// readPolicy reads the policy that a flag or an argument names.
func (a *app) readPolicy(what, text string) (*policy.Policy, error) {
	p, err := netpolicy.Read(text, a.in)
	if err != nil {
		return nil, usagef("%s: %w", what, err)
	}
	return p, nil
}

func newPolicyCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check POLICY",
		Short: "Validate a network policy and print what it means",
		Long: `Validate a network policy and print what it means: the rules of each direction in the
order in which they decide. Of the rules that match, the first one decides. Nothing is
changed.`,
		Example: `  allocnet policy check web.json
  allocnet policy check egress-only,no-private`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePolicies,
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := a.readPolicy("policy", args[0])
			if err != nil {
				return err
			}
			if a.flags.json {
				return a.out.JSON(rulesReport{p, netpolicy.Rules(p)})
			}
			a.printRules(p)
			return nil
		},
	}
}

// rulesReport is what policy check prints with --json.
type rulesReport struct {
	Policy *policy.Policy   `json:"policy"`
	Rules  []netpolicy.Rule `json:"rules"`
}

// printRules prints what a policy means.
func (a *app) printRules(p *policy.Policy) {
	rules := netpolicy.Rules(p)
	rows := make([][]term.Cell, len(rules))
	for i, r := range rules {
		rows[i] = []term.Cell{{Text: r.Direction, Style: term.Plain}, verdictCell(r.Verdict), {Text: r.Peer, Style: term.Plain}, {Text: r.Service, Style: term.Plain}, {Text: r.Rule, Style: term.Plain}}
	}
	a.out.Table([]string{"DIRECTION", "VERDICT", "PEER", "SERVICE", "RULE"}, rows)
}

func verdictCell(v policy.Verdict) term.Cell {
	if v == policy.Deny {
		return term.Cell{Text: string(v), Style: term.Red}
	}
	return term.Cell{Text: string(v), Style: term.Green}
}

// translateFlags are the flags of policy translate.
type translateFlags struct {
	namespace       string
	labels          []string
	namespaceLabels []string
	ports           []string
	peerPorts       []string
}

func newPolicyTranslate(a *app) *cobra.Command {
	var f translateFlags
	c := &cobra.Command{
		Use:   "translate FILE...",
		Short: "Translate NetworkPolicy documents of Kubernetes",
		Long: `Translate NetworkPolicy documents of Kubernetes (networking.k8s.io/v1, in JSON; a list is
possible) into the policy of the allocation of one pod. - is standard input. With --json
the output also has the labels that the allocation needs; setup and set accept those of
the namespace and of ports with --allow-reserved-labels. Nothing is changed.

A named port of an ingress rule has the numbers of the pod's own ports, --port. One of an
egress rule has those that its peers have under this name: --peer-port says which numbers
there are, and the labels of each allocation which ones are its own. A name without a
number, and a name for an ipBlock, allow nothing, with a warning.`,
		Example: `  kubectl get networkpolicies -A -o json | allocnet policy translate - --namespace shop --label app=db
  allocnet policy translate np.json --label app=db > db.json && allocnet set db --policy db.json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return a.translate(args, &f) },
	}
	c.Flags().StringVar(&f.namespace, "namespace", "default", "namespace of the pod")
	c.Flags().StringArrayVarP(&f.labels, "label", "l", nil, "label KEY=VALUE of the pod; may be repeated")
	c.Flags().StringArrayVar(&f.namespaceLabels, "namespace-label", nil, "label KEY=VALUE of its namespace; may be repeated")
	c.Flags().StringArrayVar(&f.ports, "port", nil, "named port of the pod, as http=tcp/8080; may be repeated")
	c.Flags().StringArrayVar(&f.peerPorts, "peer-port", nil, "named port of other pods, for egress rules, as http=tcp/80; may be repeated")
	for _, name := range []string{"namespace", "label", "namespace-label", "port", "peer-port"} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return c
}

// translation is what policy translate prints with --json.
type translation struct {
	Policy *policy.Policy    `json:"policy"`
	Labels map[string]string `json:"labels"`
}

func (a *app) translate(files []string, f *translateFlags) error {
	pod, err := f.pod()
	if err != nil {
		return err
	}
	var documents [][]byte
	for _, file := range files {
		data, err := a.readDocument(file)
		if err != nil {
			return err
		}
		documents = append(documents, data)
	}
	set, err := networkpolicy.Parse(documents...)
	if err != nil {
		return usagef("%w", err)
	}
	p, err := set.For(*pod)
	if err != nil {
		return usagef("%w", err)
	}
	labels, err := pod.AllocationLabels()
	if err != nil {
		return usagef("%w", err)
	}
	for _, warning := range set.Warnings(*pod) {
		a.warn("%s", warning)
	}
	if p.IsEmpty() {
		a.warn("no document selects the pod with --namespace %s and --label %s: the policy allows everything", f.namespace, cmp.Or(strings.Join(f.labels, ","), "none"))
	}
	if a.flags.json {
		return a.out.JSON(translation{p, labels})
	}
	return a.out.JSON(p)
}

func (a *app) readDocument(file string) ([]byte, error) {
	from := a.in
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, usagef("%w", err)
		}
		defer opened.Close()
		from = opened
	}
	return io.ReadAll(io.LimitReader(from, networkpolicy.MaxSize+1))
}

// pod reads the flags.
func (f *translateFlags) pod() (*networkpolicy.Pod, error) {
	pod := &networkpolicy.Pod{Namespace: f.namespace}
	var err error
	if pod.Labels, err = parsePairs("--label", f.labels); err != nil {
		return nil, err
	}
	if pod.NamespaceLabels, err = parsePairs("--namespace-label", f.namespaceLabels); err != nil {
		return nil, err
	}
	if pod.Ports, err = parseNamedPorts("--port", f.ports); err != nil {
		return nil, err
	}
	pod.PeerPorts, err = parseNamedPorts("--peer-port", f.peerPorts)
	return pod, err
}

// parseNamedPorts reads the values NAME=PROTOCOL/NUMBER of a flag.
func parseNamedPorts(flag string, texts []string) ([]networkpolicy.Port, error) {
	var list []networkpolicy.Port
	for _, text := range texts {
		name, service, _ := strings.Cut(text, "=")
		flow, err := policy.ParseFlow(service)
		if err != nil {
			return nil, usagef("%s %q: %w", flag, text, err)
		}
		list = append(list, networkpolicy.Port{Name: name, Protocol: policy.ProtocolName(flow.Protocol), Number: flow.Port})
	}
	return list, nil
}

// parsePairs reads the values KEY=VALUE of a flag.
func parsePairs(flag string, texts []string) (map[string]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	pairs := map[string]string{}
	for _, text := range texts {
		key, value, found := strings.Cut(text, "=")
		if !found {
			return nil, usagef("%s %q: must be KEY=VALUE", flag, text)
		}
		pairs[key] = value
	}
	return pairs, nil
}

// policyText returns a policy in a few words: its presets, the number of its own rules, and the
// directions that deny by default.
func policyText(p *policy.Policy) string {
	if p == nil {
		return ""
	}
	var words []string
	for _, preset := range p.Presets {
		words = append(words, string(preset))
	}
	for _, d := range []struct {
		name string
		*policy.Direction
	}{{"ingress", p.Ingress}, {"egress", p.Egress}} {
		if d.Direction != nil {
			words = append(words, fmt.Sprintf("%s:%s+%d", d.name, cmp.Or(d.Default, policy.Allow), len(d.Rules)))
		}
	}
	return strings.Join(words, " ")
}

// printPolicies prints the policies of the networks of an allocation, and its own.
func (a *app) printPolicies(r *configurator.Record) {
	show := func(of string, p *policy.Policy) {
		if p != nil {
			a.out.Printf("\n%s\n", a.out.Paint(term.Bold, "Policy of "+of))
			a.printRules(p)
		}
	}
	for _, n := range r.Networks {
		general, _, err := netpolicy.PolicyOf(n.Config)
		if err != nil {
			a.warn("policy of network %s: %v", n.Network, err)
		}
		show("network "+n.Network, general)
	}
	show("allocation "+r.ID, r.Policy)
}
