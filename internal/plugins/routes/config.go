package routes

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// routes is the plugin with its configuration.
type routes struct {
	sdk.Common
	Table    uint32 `json:"table"`
	Protocol *uint8 `json:"protocol"`
	Subnets  bool   `json:"subnets"`

	valid bool // an ADD with this configuration can have succeeded
}

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	r := &routes{}
	err := sdk.Decode(conf, r)
	if r.Protocol == nil {
		number := uint8(announce.DefaultProtocol)
		r.Protocol = &number
	}
	invalid := announce.Validate(r.Table, *r.Protocol)
	if invalid != nil {
		invalid = types.NewError(types.ErrInvalidNetworkConfig, invalid.Error(), "")
	}
	r.valid = (err == nil || sdk.IsUnknownKey(err)) && invalid == nil
	return r, sdk.FirstError(err, invalid)
}
