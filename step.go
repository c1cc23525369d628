package allocnet

// Step is an operation, or a part of one.
type Step struct {
	// Operation is setup, check, teardown, gc or repair.
	Operation string `json:"operation"`
	// Name is what is done: "" for the whole operation, else one of the Step
	// constants.
	Name string `json:"step,omitempty"`
	// ID is that of the allocation; "" for the whole of a gc or repair.
	ID       string   `json:"id,omitempty"`
	Networks []string `json:"networks,omitempty"`
	Engine   Engine   `json:"engine,omitempty"`
	// Args are those of the Record: what the runtime calls the allocation. They are known
	// at the end of the whole operation.
	Args map[string]string `json:"args,omitempty"`
}

// Steps of operations. One that is tried again ends several times.
const (
	StepLock     = "lock"      // wait for other operations on the allocation
	StepPlan     = "plan"      // find networks, engine and plugins
	StepClaim    = "claim"     // look for conflicts, record the intent
	StepAdd      = "add"       // ADD of all plugins
	StepRecord   = "record"    // record the result
	StepCheck    = "check"     // CHECK of all plugins
	StepRepair   = "repair"    // put back what is missing
	StepRollBack = "roll back" // undo an ADD that failed
	StepWait     = "wait"      // until an ADD is tried again
	StepDel      = "del"       // DEL of all plugins
	StepAudit    = "audit"     // look for what DEL left
	StepForce    = "force"     // remove what DEL left
)
