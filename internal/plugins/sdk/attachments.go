package sdk

import (
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/names"
)

// ValidKey is the key of a configuration with the attachments that GC must keep.
const ValidKey = "cni.dev/valid-attachments"

// FormerValidKey is its name in the text of the specification of libcni 1.2.0 to 1.2.2.
const FormerValidKey = "cni.dev/attachments"

// validAttachments returns the ValidAttachments of a configuration.
func validAttachments(conf []byte) (valid []types.GCAttachment, given bool, err error) {
	var keys struct {
		Valid  json.RawMessage `json:"cni.dev/valid-attachments"`
		Former json.RawMessage `json:"cni.dev/attachments"`
	}
	if err := json.Unmarshal(conf, &keys); err != nil {
		return nil, false, decodingError(err)
	}
	return ValidAttachments(keys.Valid, keys.Former, json.Unmarshal)
}

// ValidAttachments returns the attachments that a GC must keep: those of the values of ValidKey and FormerValidKey,
// which are empty if the configuration does not have the key. null is an empty list, as libcni encodes one. given is
// false if the configuration has neither key: then the runtime does not know its attachments, and GC must remove
// nothing. An error has the CNI code 7.
func ValidAttachments(current, former json.RawMessage, decode func([]byte, any) error) (valid []types.GCAttachment, given bool, err error) {
	for _, k := range []struct {
		name  string
		value json.RawMessage
	}{{ValidKey, current}, {FormerValidKey, former}} {
		if len(k.value) == 0 {
			continue
		}
		var list []types.GCAttachment
		if err := decode(k.value, &list); err != nil {
			return nil, false, types.NewError(types.ErrInvalidNetworkConfig, k.name+" cannot be read", err.Error())
		}
		if err := names.ValidateAttachments(k.name, list); err != nil {
			return nil, false, err
		}
		valid, given = append(valid, list...), true
	}
	return valid, given, nil
}
