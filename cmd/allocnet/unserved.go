package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// pluginServing are the plugins that serve what can be changed while an allocation runs, by
// capability.
var pluginServing = map[string]string{"bandwidth": "bandwidth", "policy": "policy", "portMappings": "portmap"}

// unservedChange adds the hint to the error of a change that a network of a running allocation
// does not serve. The hints about setup do not apply to it: its flags have no effect, and the
// configuration of the networks is that of the setup. It returns other errors as they are.
func unservedChange(command, id string, err error) error {
	var e *configurator.UnservedError
	if !errors.As(err, &e) || len(e.Capabilities) != 1 || pluginServing[e.Capabilities[0]] == "" {
		return err
	}
	capability := e.Capabilities[0]
	add := fmt.Sprintf(`add {"type": %q, "capabilities": {%q: true}} to the plugins of %s`,
		pluginServing[capability], capability, networksOf(e))
	if capability == "policy" && slices.Contains(e.Networks, conflist.EmbeddedName) {
		add = "use the engine auto or native, with which the network allocnet enforces policies"
	}
	if command == "attach" {
		return stepError{err, fmt.Sprintf("every network of an allocation must enforce its policy: %s, attach another network, "+
			"or remove the policy (`allocnet set %s --policy none`)", add, id)}
	}
	or := "; or omit the flag"
	if command == "publish" {
		or = ""
	}
	return stepError{err, fmt.Sprintf("an allocation keeps the configuration of its setup: %s, "+
		"then tear the allocation down (`allocnet teardown %s`) and set it up again%s", add, id, or)}
}

// networksOf names the networks of an error. All of them must enforce a policy, and one of them
// must serve another capability.
func networksOf(e *configurator.UnservedError) string {
	names := make([]string, len(e.Networks))
	for i, name := range e.Networks {
		names[i] = fmt.Sprintf("%q", name)
	}
	if len(names) > 1 && slices.Contains(e.Capabilities, "policy") {
		return "networks " + strings.Join(names, " and ")
	}
	return "network " + strings.Join(names, " or ")
}
