package podcidr

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// selector is a compiled corev1.NodeSelector. At least one of its terms has to match, with all of its requirements.
type selector struct{ terms []selectorTerm }

type selectorTerm struct {
	labelRequirements []labels.Requirement
	nameRules         []nameRule
}

// nameRule is the requirement of a term on metadata.name, the only field of a Node that can be selected by.
type nameRule struct {
	name    string
	negated bool
}

// fallbackScore is the score of a Node for a range without a selector: less than any other.
const fallbackScore = -1

var selectionOperators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// compileSelector returns nil for a selector that selects all Nodes.
func compileSelector(path *field.Path, s *corev1.NodeSelector) (*selector, field.ErrorList) {
	if s == nil || len(s.NodeSelectorTerms) == 0 {
		return nil, nil
	}
	out := &selector{}
	var errs field.ErrorList
	for i, t := range s.NodeSelectorTerms {
		at := path.Child("nodeSelectorTerms").Index(i)
		compiled := selectorTerm{}
		for j, e := range t.MatchExpressions {
			here := at.Child("matchExpressions").Index(j)
			r, err := labels.NewRequirement(e.Key, selectionOperators[e.Operator], e.Values, field.WithPath(here))
			if err != nil {
				errs = append(errs, field.Invalid(here, e.Key, err.Error()))
				continue
			}
			compiled.labelRequirements = append(compiled.labelRequirements, *r)
		}
		for j, e := range t.MatchFields {
			here := at.Child("matchFields").Index(j)
			isIn, isNotIn := e.Operator == corev1.NodeSelectorOpIn, e.Operator == corev1.NodeSelectorOpNotIn
			if e.Key != "metadata.name" || (!isIn && !isNotIn) || len(e.Values) != 1 {
				errs = append(errs, field.Invalid(here, e.Key, "selects only metadata.name, In or NotIn one value"))
				continue
			}
			compiled.nameRules = append(compiled.nameRules, nameRule{name: e.Values[0], negated: isNotIn})
		}
		out.terms = append(out.terms, compiled)
	}
	return out, errs
}

// matchNode reports whether a Node is selected, and returns the largest number of expressions and fields of a term that
// it matches. An empty term matches no Node, as in the scheduler.
func (s *selector) matchNode(n *Node) (matches int, ok bool) {
	if s == nil {
		return fallbackScore, true
	}
	for _, t := range s.terms {
		if count := len(t.labelRequirements) + len(t.nameRules); count > 0 && t.matchesNode(n) {
			matches, ok = max(matches, count), true
		}
	}
	return matches, ok
}

// The descriptions of a selector that selects all Nodes, or none.
const (
	AllNodesText = "all Nodes"
	NoNodeText   = "no Node"
)

// String returns the selector in a readable form: the requirements of a term are joined by commas.
func (s *selector) String() string {
	if s == nil {
		return AllNodesText
	}
	var terms []string
	for _, t := range s.terms {
		var requirements []string
		for i := range t.labelRequirements {
			requirements = append(requirements, t.labelRequirements[i].String())
		}
		for _, r := range t.nameRules {
			operator := "="
			if r.negated {
				operator = "!="
			}
			requirements = append(requirements, "metadata.name"+operator+r.name)
		}
		if len(requirements) > 0 {
			terms = append(terms, strings.Join(requirements, ","))
		}
	}
	if len(terms) == 0 {
		return NoNodeText
	}
	return strings.Join(terms, " or ")
}

func (t selectorTerm) matchesNode(n *Node) bool {
	unlike := func(r nameRule) bool { return (r.name == n.Name) == r.negated }
	if slices.ContainsFunc(t.nameRules, unlike) {
		return false
	}
	for i := range t.labelRequirements {
		if !t.labelRequirements[i].Matches(labels.Set(n.Labels)) {
			return false
		}
	}
	return true
}
