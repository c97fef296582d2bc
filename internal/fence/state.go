// Package fence serialises the grants of CIDRs to the Nodes of a cluster: every grant is a write of one ConfigMap in
// that cluster, by resource version. So of two managers, wherever they run and however long one of them was paused, one
// at a time grants anything, and the other finds out before it does.
//
// docs/design.md has the proof.
package fence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// State is the content of the ConfigMap.
type State struct {
	// Holder is the ID of the process that grants CIDRs, Term counts the holders, and Seq counts the commits.
	Holder string `json:"holder"`
	Term   int64  `json:"term"`
	Seq    int64  `json:"seq"`
	// AdoptingSince is the time since which nothing is granted because another allocator, or a manager whose state was
	// lost, may still write; nil means that nothing is adopted.
	AdoptingSince *time.Time `json:"adopting,omitempty"`
	// OpenRanges are the objects that may be granted from; no other object may.
	OpenRanges []OpenRange `json:"open,omitempty"`
	// InFlight are the grants for which it is not proven that their Nodes have them, or are gone.
	InFlight []Grant `json:"inFlight,omitempty"`
}

// OpenRange is an object whose CIDRs may be granted.
type OpenRange struct {
	Kind string    `json:"kind"`
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	// ClusterCIDRName names the ClusterCIDR that a block is for; grants from the block name it too. Draining reports
	// whether nothing more is granted from a block; Nodes keep what they have of it.
	ClusterCIDRName string         `json:"for,omitempty"`
	Draining        bool           `json:"draining,omitempty"`
	CIDRs           []netip.Prefix `json:"cidrs,omitempty"`
}

// Equal reports whether two entries have the same content.
func (o OpenRange) Equal(other OpenRange) bool {
	return o.Kind == other.Kind && o.Name == other.Name && o.UID == other.UID && o.ClusterCIDRName == other.ClusterCIDRName && o.Draining == other.Draining &&
		slices.Equal(o.CIDRs, other.CIDRs)
}

// Grant records which CIDRs a Node is granted.
type Grant struct {
	NodeName        string         `json:"node"`
	NodeUID         types.UID      `json:"uid"`
	ClusterCIDRName string         `json:"from,omitempty"`
	CIDRs           []netip.Prefix `json:"cidrs"`
}

// isSameCommit reports whether two states are of the same commit.
func (s State) isSameCommit(o State) bool {
	return s.Holder == o.Holder && s.Term == o.Term && s.Seq == o.Seq
}

// encodeState returns a state as the text that the ConfigMap has.
func encodeState(s State) (string, error) {
	raw, err := json.Marshal(s)
	return string(raw), err
}

// parseState parses a state. An unknown field is an error: a manager that ignored it would write a state without it.
func parseState(text string) (s State, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return State{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return State{}, errors.New("there is more after the end of the object")
	}
	if s.Holder == "" || s.Term < 1 || s.Seq < 0 {
		return State{}, errors.New("it names no holder and term")
	}
	for _, o := range s.OpenRanges {
		if o.ClusterCIDRName != "" && (o.Name == "" || len(o.CIDRs) != 1 || !o.CIDRs[0].IsValid() || o.CIDRs[0] != o.CIDRs[0].Masked()) {
			return State{}, fmt.Errorf("the block %q for %s lacks its name, or its one CIDR", o.Name, o.ClusterCIDRName)
		}
	}
	for _, g := range s.InFlight {
		if g.NodeUID == "" || g.NodeName == "" || len(g.CIDRs) == 0 {
			return State{}, fmt.Errorf("the grant in flight to Node %q lacks its name, UID or CIDRs", g.NodeName)
		}
	}
	return s, nil
}
