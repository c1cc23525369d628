// Package nomad converts between the network of a Nomad task group and an allocation
// of allocnet. It does not import Nomad: its types have the fields and the JSON of
// Nomad's HTTP API, as printed by "nomad alloc status -json".
//
// A client that runs Nomad's allocations, such as a plugin or a simulator, decodes
// AllocatedResources.Shared into a [Shared], sets up [Group.Allocation], and passes
// [Group.Environment] to the tasks. [GroupOf] finds the group of a recorded allocation
// again; it works as well on allocations that Nomad made itself through the CNI plugin, if
// that version of Nomad passes its arguments to plugins.
// A scheduler that reads jobs gives their ports host ports with [Network.Allocate].
//
// Nomad itself needs none of this: it calls allocnet through CNI.
package nomad
