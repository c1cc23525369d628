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

// validAttachments returns the attachments that a GC must keep: those of both keys. null
// is an empty list, as libcni encodes one. given is false if the configuration has neither
// key: then the runtime does not know its attachments, and GC must remove nothing.
func validAttachments(conf []byte) (valid []types.GCAttachment, given bool, err error) {
	var keys struct {
		Valid  json.RawMessage `json:"cni.dev/valid-attachments"`
		Former json.RawMessage `json:"cni.dev/attachments"`
	}
	if err := json.Unmarshal(conf, &keys); err != nil {
		return nil, false, decodingError(err)
	}
	for _, k := range []struct {
		name  string
		value json.RawMessage
	}{{ValidKey, keys.Valid}, {FormerValidKey, keys.Former}} {
		if len(k.value) == 0 {
			continue
		}
		var list []types.GCAttachment
		if err := json.Unmarshal(k.value, &list); err != nil {
			return nil, false, types.NewError(types.ErrInvalidNetworkConfig, k.name+" cannot be read", err.Error())
		}
		if err := names.ValidateAttachments(k.name, list); err != nil {
			return nil, false, err
		}
		valid, given = append(valid, list...), true
	}
	return valid, given, nil
}
