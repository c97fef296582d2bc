package tenancy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestMissingProviderConfigMessagesNameStepsThatHelp checks that the ProviderConfig of a Cluster is found after the
// step that the message names (W29).
func TestMissingProviderConfigMessagesNameStepsThatHelp(t *testing.T) {
	configs := func(names ...string) (out []v1alpha1.ProviderConfig) {
		for _, name := range names {
			var c v1alpha1.ProviderConfig
			c.Namespace, c.Name, _ = strings.Cut(name, "/")
			out = append(out, c)
		}
		return out
	}
	team := Namespace{Name: "team", Labels: map[string]string{v1alpha1.TeamLabel: "a"}}
	chosen := func(all []v1alpha1.ProviderConfig, name string, from Namespace, wantMessage string) {
		t.Helper()
		_, decision := ChooseProviderConfig(all, name, from, nil)
		if (decision == nil) != (wantMessage == "") || (decision != nil && !strings.Contains(decision.Message, wantMessage)) {
			t.Errorf("%+v, not %q", decision, wantMessage)
		}
	}
	const both = "delete one, or create it again under another name"
	chosen(configs("a/config", "b/config"), "config", team, both)
	chosen(configs("a/config"), "config", team, "")
	chosen(configs("a/config", "b/another"), "config", team, "")
	const none = "create it or correct the label " + v1alpha1.ProviderConfigLabel
	chosen(configs("a/config"), "confg", team, none)
	chosen(configs("a/config", "a/confg"), "confg", team, "")
	chosen(configs("a/config"), "config", team, "")
}

// TestRefusedNamespaceMessagesNameStepsThatHelp checks that a namespace is admitted after the step that the message
// names (W29).
func TestRefusedNamespaceMessagesNameStepsThatHelp(t *testing.T) {
	selects := func(stage string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"stage": stage}}
	}
	scope := func(team string) *v1alpha1.ProviderScope {
		s := &v1alpha1.ProviderScope{Type: v1alpha1.TeamScope}
		if team != "" {
			s.TeamRef = &v1alpha1.TeamReference{Name: team}
		}
		return s
	}
	labelled := func(key, value string) Namespace {
		return Namespace{Name: "ns", Labels: map[string]string{key: value}}
	}
	type try struct {
		spec v1alpha1.ProviderConfigSpec
		from Namespace
	}
	for name, c := range map[string]struct {
		attempt     try
		wantMessage string
		do          []try
	}{
		"not selected": {
			try{v1alpha1.ProviderConfigSpec{NamespaceSelector: selects("prod")}, labelled("stage", "test")}, "label the namespace to match spec.namespaceSelector, or change the selector",
			[]try{{v1alpha1.ProviderConfigSpec{NamespaceSelector: selects("prod")}, labelled("stage", "prod")}, {v1alpha1.ProviderConfigSpec{NamespaceSelector: selects("test")}, labelled("stage", "test")}},
		},
		"no team is named": {
			try{v1alpha1.ProviderConfigSpec{Scope: scope("")}, labelled(v1alpha1.TeamLabel, "a")}, "set spec.scope.teamRef, or spec.namespaceSelector",
			[]try{{v1alpha1.ProviderConfigSpec{Scope: scope("a")}, labelled(v1alpha1.TeamLabel, "a")}, {v1alpha1.ProviderConfigSpec{Scope: scope(""), NamespaceSelector: &metav1.LabelSelector{}}, labelled(v1alpha1.TeamLabel, "a")}},
		},
		"of another team": {
			try{v1alpha1.ProviderConfigSpec{Scope: scope("a")}, Namespace{Name: "ns"}}, "if namespace ns belongs to that team, label it " + v1alpha1.TeamLabel + "=a",
			[]try{{v1alpha1.ProviderConfigSpec{Scope: scope("a")}, labelled(v1alpha1.TeamLabel, "a")}},
		},
		"of no team": {
			try{from: Namespace{Name: "ns"}}, "label namespace ns with " + v1alpha1.TeamLabel + ", or set spec.namespaceSelector",
			[]try{{from: labelled(v1alpha1.TeamLabel, "a")}, {v1alpha1.ProviderConfigSpec{NamespaceSelector: &metav1.LabelSelector{}}, Namespace{Name: "ns"}}},
		},
	} {
		admits := func(x try) Admission {
			config := &v1alpha1.ProviderConfig{Spec: x.spec}
			config.Name, config.Namespace = "config", "home"
			return AdmitsNamespace(config, x.from)
		}
		if got := admits(c.attempt); got.Allowed || !strings.Contains(got.Message, c.wantMessage) {
			t.Errorf("%s: %+v", name, got)
		}
		for _, do := range c.do {
			if got := admits(do); !got.Allowed {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// TestInvalidSizeAdviceHelps checks that an invalid size annotation is accepted once it is corrected or
// removed (W29).
func TestInvalidSizeAdviceHelps(t *testing.T) {
	asked := func(text string) map[string]string { return map[string]string{v1alpha1.LBPoolSizeAnnotation: text} }
	if _, err := ComputeInitialSize(network{}, asked("many")); err == nil || !strings.Contains(err.Error(), "write a whole number from 1 to 2147483647, or remove it to get the size of the ProviderConfig") {
		t.Error(err)
	}
	for _, annotations := range []map[string]string{asked("1"), asked("2147483647"), nil} {
		if _, err := ComputeInitialSize(network{}, annotations); err != nil {
			t.Error(err)
		}
	}
}

// TestMissingPoolMessagesNameStepsThatHelp checks that a Cluster that no pool serves continues, and its ProviderConfig
// is valid, after the step that the message names (W29).
func TestMissingPoolMessagesNameStepsThatHelp(t *testing.T) {
	roomy := func(name string) Pool { return openPool(name, 8) }
	gone := otherPool("gone", PoolMissing, "does not exist")
	begin := AllocationRequest{Config: types.NamespacedName{Namespace: "ns", Name: "config"}, Count: 8}
	with := func(change func(*AllocationRequest)) AllocationRequest {
		s := begin
		change(&s)
		return s
	}
	isFull := func(s *AllocationRequest) {
		s.Pools, s.Current, s.Attempts = []Pool{openPool("a", 4), openPool("b", 4)}, newFailedBlock("a", full), tried(full, "a", "b")
	}
	for name, c := range map[string]struct {
		request     AllocationRequest
		grow        bool
		wantMessage string
		do          []func(*AllocationRequest)
	}{
		"all are full": {with(isFull), false, "add addresses to a pool, ask for fewer with the annotation " + v1alpha1.LBPoolSizeAnnotation + ", or add a pool to the ProviderConfig", []func(*AllocationRequest){
			func(s *AllocationRequest) { s.Pools = []Pool{openPool("a", 4), roomy("b")} },
			func(s *AllocationRequest) { s.Count = 4 },
			func(s *AllocationRequest) { s.Pools = append(s.Pools, roomy("c")) },
		}},
		"all are full, and it grows": {with(isFull), true, "add addresses to a pool, or a pool to the ProviderConfig", nil},
		"none is named":              {begin, false, "add spec.network.poolRefs", []func(*AllocationRequest){func(s *AllocationRequest) { s.Pools = []Pool{roomy("a")} }}},
		"it does not exist": {with(func(s *AllocationRequest) { s.Pools = []Pool{gone} }), false, "create it, or correct network.poolRefs", []func(*AllocationRequest){
			func(s *AllocationRequest) { s.Pools = []Pool{roomy("gone")} }, func(s *AllocationRequest) { s.Pools = []Pool{roomy("a")} },
		}},
		"none exists": {with(func(s *AllocationRequest) { s.Pools = []Pool{gone, otherPool("too", PoolMissing, "does not exist")} }), false, "create one, or correct network.poolRefs", []func(*AllocationRequest){
			func(s *AllocationRequest) { s.Pools = []Pool{gone, roomy("too")} }, func(s *AllocationRequest) { s.Pools = []Pool{roomy("a")} },
		}},
	} {
		next := func(s AllocationRequest) Decision {
			if c.grow {
				f := newPoolFailover(s)
				f.isGrowth = true
				return f.decideAction()
			}
			return DecideInitialBlock(s)
		}
		if got := next(c.request); got.Action != ActionExhausted || !strings.Contains(got.Message, c.wantMessage) {
			t.Errorf("%s: %+v", name, got)
		}
		for i, do := range c.do {
			s := c.request
			do(&s)
			if got := next(s); got.Action != ActionCreate && got.Action != ActionReplace {
				t.Errorf("%s: after step %d %+v", name, i, got)
			}
		}
	}
	ipam := network{Mode: v1alpha1.IPAMMode, PoolRefs: []v1alpha1.ProviderPoolReference{{PoolReference: newPoolRef("gone")}}}
	for _, c := range []struct {
		network           network
		pools, do         []Pool
		wantMessage, then string
	}{
		{ipam, []Pool{gone}, []Pool{roomy("gone")}, "create it, or correct the entry", "Ready"},
		{network{Mode: v1alpha1.IPAMMode, PoolRefs: []v1alpha1.ProviderPoolReference{{PoolReference: newPoolRef("p")}}}, []Pool{openPool("p", 4)}, []Pool{roomy("p")}, "add addresses to a pool, or add a pool to network.poolRefs", "Ready"},
		{network{Mode: v1alpha1.IPAMMode}, []Pool{openPool("p", 4)}, []Pool{openPool("p", 4), roomy("q")}, "add addresses to a pool, or add a pool to network.poolRefs", "Ready"},
	} {
		if got := ValidateNetwork(c.network, c.pools).Ready; !strings.Contains(got.Message, c.wantMessage) {
			t.Errorf("%+v", got)
		}
		if got := ValidateNetwork(c.network, c.do).Ready; got.Reason != c.then {
			t.Errorf("%+v", got)
		}
	}
}

// TestNameTakenAdviceHelps checks that, of two Clusters that need the same block name, the
// one that is created under another name has a block name of its own (W29).
func TestNameTakenAdviceHelps(t *testing.T) {
	one, other := v1alpha1.ClusterReference{Namespace: "a-b", Name: "c"}, v1alpha1.ClusterReference{Namespace: "a", Name: "b-c"}
	if InitialBlockName(one) != InitialBlockName(other) {
		t.Fatal("they need different names")
	}
	block := &v1alpha1.IPAllocation{}
	block.Namespace, block.Name, block.Spec.TenantClusterRef = "ns", InitialBlockName(one), one
	if message := NameTakenDecision(block).Message; !strings.Contains(message, "create one of the two Clusters under another name") {
		t.Error(message)
	}
	if other.Name = "d"; InitialBlockName(one) == InitialBlockName(other) {
		t.Error("they need the same name still")
	}
}
