package bridge

import "errors"

// trunk is one entry of vlanTrunk: an ID, a range, or both.
type trunk struct {
	MinID *int `json:"minID"`
	MaxID *int `json:"maxID"`
	ID    *int `json:"id"`
}

const lastVLAN = 4094

// vlanRange is a range of VLANs, including first and last.
type vlanRange struct{ first, last uint16 }

// ranges returns the VLANs of a trunk without duplicates. Its errors are those
// of the reference plugin.
func ranges(trunks []*trunk) ([]vlanRange, error) {
	var member [lastVLAN + 2]bool
	for _, t := range trunks {
		if t == nil {
			return nil, errors.New("vlanTrunk: an entry is null")
		}
		if err := t.mark(&member); err != nil {
			return nil, err
		}
	}
	var list []vlanRange
	for id := 1; id <= lastVLAN; id++ {
		if !member[id] {
			continue
		}
		first := id
		for member[id+1] {
			id++
		}
		list = append(list, vlanRange{uint16(first), uint16(id)})
	}
	return list, nil
}

// mark adds the VLANs of a trunk to member.
func (t *trunk) mark(member *[lastVLAN + 2]bool) error {
	isVLAN := func(id int) bool { return id > 0 && id <= lastVLAN }
	switch {
	case t.MinID == nil && t.MaxID == nil:
	case t.MinID == nil:
		return errors.New("minID and maxID should be configured simultaneously, minID is missing")
	case t.MaxID == nil:
		return errors.New("minID and maxID should be configured simultaneously, maxID is missing")
	case !isVLAN(*t.MinID):
		return errors.New("incorrect trunk minID parameter")
	case !isVLAN(*t.MaxID):
		return errors.New("incorrect trunk maxID parameter")
	case *t.MaxID < *t.MinID:
		return errors.New("minID is greater than maxID in trunk parameter")
	default:
		for id := *t.MinID; id <= *t.MaxID; id++ {
			member[id] = true
		}
	}
	if t.ID == nil {
		return nil
	}
	if !isVLAN(*t.ID) {
		return errors.New("incorrect trunk id parameter")
	}
	member[*t.ID] = true
	return nil
}
