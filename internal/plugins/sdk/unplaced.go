package sdk

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// UnplacedError is an error of DEL: the configuration does not say where ADD has left something, so
// that it may still be there. DEL of an attachment that was never made does not return it.
type UnplacedError struct {
	What string // that ADD has left
	Err  error  // why its place is not known
}

// Error implements error.
func (e *UnplacedError) Error() string {
	return fmt.Sprintf("the place of %s is not known: %v; correct the configuration and repeat DEL", e.What, e.Err)
}

// As makes errors.As find a *types.Error with the code for an invalid configuration. That has the whole
// text, because a runtime sees nothing else.
func (e *UnplacedError) As(target any) bool {
	coded, ok := target.(**types.Error)
	if ok {
		*coded = types.NewError(types.ErrInvalidNetworkConfig, e.Error(), "")
	}
	return ok
}

// DataDir returns the value of the key dataDir of an object; "" if it has none. The error says why the
// object or the value cannot be read.
func DataDir(object []byte) (string, error) {
	var keys struct {
		DataDir string `json:"dataDir"`
	}
	err := json.Unmarshal(object, &keys)
	return keys.DataDir, err
}
