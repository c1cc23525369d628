package sdk

import (
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// RewordDel returns the text of an error of DEL without the words for which go-cni, and with it containerd, nerdctl
// and Nomad, takes it for success: that something is "not found", and without a network namespace that there is "no
// such file or directory".
var RewordDel = strings.NewReplacer("not found", "missing", "no such file or directory", "it does not exist").Replace

// delError is an error of DEL for a runtime.
type delError struct{ error }

func (e delError) Error() string { return RewordDel(e.error.Error()) }

func (e delError) Unwrap() error { return e.error }

// As makes errors.As find the *types.Error of the error with other words.
func (e delError) As(target any) bool {
	coded, ok := target.(**types.Error)
	if !ok || !errors.As(e.error, coded) {
		return false
	}
	*coded = types.NewError((*coded).Code, RewordDel((*coded).Msg), RewordDel((*coded).Details))
	return true
}
