// Package fence serialises who gives CIDRs to the Nodes of a cluster: every grant is a write of one ConfigMap in that
// cluster, by resource version. So of two managers, wherever they run and however long one of them was paused, one at a
// time gives anything, and the other finds out before it does.
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

// State is what the ConfigMap says.
type State struct {
	// Holder is the id of the process that gives CIDRs, Term counts the holders, Seq the commits.
	Holder string `json:"holder"`
	Term   int64  `json:"term"`
	Seq    int64  `json:"seq"`
	// Adopting is since when nothing is given because another allocator, or a state that was lost, may still write.
	Adopting *time.Time `json:"adopting,omitempty"`
	// Open is what may be given from: nothing else is.
	Open []Open `json:"open,omitempty"`
	// InFlight are the grants of which it is not proven that their Nodes have them, or are gone.
	InFlight []Grant `json:"inFlight,omitempty"`
}

// Open is an object whose CIDRs may be given.
type Open struct {
	Kind string    `json:"kind"`
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	// For names the object that a block is for, which its CIDRs are given for. Draining: what Nodes have of a block stays
	// theirs, and nothing more is given.
	For      string         `json:"for,omitempty"`
	Draining bool           `json:"draining,omitempty"`
	CIDRs    []netip.Prefix `json:"cidrs,omitempty"`
}

// Same reports whether two entries say the same.
func (o Open) Same(other Open) bool {
	return o.Kind == other.Kind && o.Name == other.Name && o.UID == other.UID && o.For == other.For && o.Draining == other.Draining &&
		slices.Equal(o.CIDRs, other.CIDRs)
}

// Grant is what a Node is given.
type Grant struct {
	Node  string         `json:"node"`
	UID   types.UID      `json:"uid"`
	From  string         `json:"from,omitempty"`
	CIDRs []netip.Prefix `json:"cidrs"`
}

// same reports whether a state is of the same commit as another.
func (s State) same(o State) bool { return s.Holder == o.Holder && s.Term == o.Term && s.Seq == o.Seq }

// encode writes a state as the ConfigMap has it.
func encode(s State) (string, error) {
	raw, err := json.Marshal(s)
	return string(raw), err
}

// parse reads a state. What is not known here is an error: a manager that passed over it would write a state without it.
func parse(text string) (s State, err error) {
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
	for _, o := range s.Open {
		if o.For != "" && (o.Name == "" || len(o.CIDRs) != 1 || !o.CIDRs[0].IsValid() || o.CIDRs[0] != o.CIDRs[0].Masked()) {
			return State{}, fmt.Errorf("the block %q for %s lacks its name, or its one CIDR", o.Name, o.For)
		}
	}
	for _, g := range s.InFlight {
		if g.UID == "" || g.Node == "" || len(g.CIDRs) == 0 {
			return State{}, fmt.Errorf("the grant in flight to Node %q lacks its name, UID or CIDRs", g.Node)
		}
	}
	return s, nil
}
