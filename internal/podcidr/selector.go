package podcidr

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// selector is a corev1.NodeSelector, compiled. Of its terms one has to match, of a term all that it says.
type selector struct{ terms []term }

type term struct {
	labels []labels.Requirement
	names  []nameRule
}

// nameRule is what a term says of metadata.name, the only field of a Node that can be selected.
type nameRule struct {
	name string
	not  bool
}

// fallback is how well a Node matches a range without a selector: less than any other.
const fallback = -1

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// compileSelector returns nil for a selector that selects all.
func compileSelector(path *field.Path, s *corev1.NodeSelector) (*selector, field.ErrorList) {
	if s == nil || len(s.NodeSelectorTerms) == 0 {
		return nil, nil
	}
	out := &selector{}
	var errs field.ErrorList
	for i, t := range s.NodeSelectorTerms {
		at := path.Child("nodeSelectorTerms").Index(i)
		compiled := term{}
		for j, e := range t.MatchExpressions {
			here := at.Child("matchExpressions").Index(j)
			r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values, field.WithPath(here))
			if err != nil {
				errs = append(errs, field.Invalid(here, e.Key, err.Error()))
				continue
			}
			compiled.labels = append(compiled.labels, *r)
		}
		for j, e := range t.MatchFields {
			here := at.Child("matchFields").Index(j)
			isIn, isNotIn := e.Operator == corev1.NodeSelectorOpIn, e.Operator == corev1.NodeSelectorOpNotIn
			if e.Key != "metadata.name" || (!isIn && !isNotIn) || len(e.Values) != 1 {
				errs = append(errs, field.Invalid(here, e.Key, "selects only metadata.name, In or NotIn one value"))
				continue
			}
			compiled.names = append(compiled.names, nameRule{name: e.Values[0], not: isNotIn})
		}
		out.terms = append(out.terms, compiled)
	}
	return out, errs
}

// match reports whether a Node is selected, and how many expressions and fields of a term it matches at most. A term that
// says nothing matches no Node, as the scheduler has it.
func (s *selector) match(n *Node) (matches int, ok bool) {
	if s == nil {
		return fallback, true
	}
	for _, t := range s.terms {
		if said := len(t.labels) + len(t.names); said > 0 && t.matches(n) {
			matches, ok = max(matches, said), true
		}
	}
	return matches, ok
}

// What is said of a selector that selects all Nodes, or none.
const (
	All  = "all Nodes"
	None = "no Node"
)

// String is the selector as a person reads it: what is in one term is joined by commas.
func (s *selector) String() string {
	if s == nil {
		return All
	}
	var terms []string
	for _, t := range s.terms {
		var said []string
		for i := range t.labels {
			said = append(said, t.labels[i].String())
		}
		for _, r := range t.names {
			is := "="
			if r.not {
				is = "!="
			}
			said = append(said, "metadata.name"+is+r.name)
		}
		if len(said) > 0 {
			terms = append(terms, strings.Join(said, ","))
		}
	}
	if len(terms) == 0 {
		return None
	}
	return strings.Join(terms, " or ")
}

func (t term) matches(n *Node) bool {
	unlike := func(r nameRule) bool { return (r.name == n.Name) == r.not }
	if slices.ContainsFunc(t.names, unlike) {
		return false
	}
	for i := range t.labels {
		if !t.labels[i].Matches(labels.Set(n.Labels)) {
			return false
		}
	}
	return true
}
