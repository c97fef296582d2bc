package tenancy

import (
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestChooseProviderConfig checks that a Cluster gets the ProviderConfig of its own namespace, else the one that admits
// the namespace.
func TestChooseProviderConfig(t *testing.T) {
	team := Namespace{Name: "team", Labels: map[string]string{v1alpha1.TeamLabel: "a"}}
	tests := map[string]struct {
		reason      string
		configs     string // list of namespace/name
		from        Namespace
		want        string // namespace of the chosen ProviderConfig
		wantRefusal string // reason and a part of the message
		blocks      string // namespaces in which the Cluster has a block of the ProviderConfig
	}{
		"Own":       {reason: "whatever others there are", configs: "a/config team/config b/config", from: team, want: "team"},
		"Shared":    {reason: "it admits the namespace", configs: "a/config", from: team, want: "a"},
		"OtherName": {reason: "another name is another one", configs: "team/other", from: team, wantRefusal: "NetworkNotReady ProviderConfig config does not exist; create it or correct the label"},
		"None":      {reason: "there is none", from: team, wantRefusal: "NetworkNotReady does not exist"},
		"Denied":    {reason: "it does not admit the namespace", configs: "a/config", from: Namespace{Name: "b"}, wantRefusal: "AccessDenied serves only namespaces that belong to a team"},
		"OwnIsFree": {reason: "its own namespace needs no label", configs: "b/config", from: Namespace{Name: "b"}, want: "b"},
		"Two":       {reason: "it is unknown which", configs: "a/config b/config", from: team, wantRefusal: "ValidationFailed ProviderConfig config exists in the namespaces a and b, and both serve this Cluster"},
		"Kept":      {reason: "it keeps the one that it has blocks of", configs: "a/config b/config", from: team, blocks: "b", want: "b"},
		"OwnOfTwo":  {reason: "its own comes first", configs: "a/config team/config", from: team, blocks: "a", want: "team"},
		"OfBoth":    {reason: "it is unknown which", configs: "a/config b/config", from: team, blocks: "a b", wantRefusal: "ValidationFailed ProviderConfig config exists in the namespaces a and b"},
		"Elsewhere": {reason: "a block of another one says nothing", configs: "a/config b/config", from: team, blocks: "z", wantRefusal: "ValidationFailed ProviderConfig config exists"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			var configs []v1alpha1.ProviderConfig
			for text := range strings.FieldsSeq(c.configs) {
				var config v1alpha1.ProviderConfig
				config.Namespace, config.Name, _ = strings.Cut(text, "/")
				configs = append(configs, config)
			}
			var blocks []*v1alpha1.IPAllocation
			for namespace := range strings.FieldsSeq(c.blocks) {
				block := &v1alpha1.IPAllocation{}
				block.Namespace, block.Labels = namespace, map[string]string{v1alpha1.ProviderConfigLabel: "config"}
				blocks = append(blocks, block)
			}
			got, decision := ChooseProviderConfig(configs, "config", c.from, blocks)
			if (got == nil) == (decision == nil) {
				t.Fatalf("%s: %v and %v", c.reason, got, decision)
			}
			reason, message, _ := strings.Cut(c.wantRefusal, " ")
			if decision != nil && (decision.Reason != reason || !strings.Contains(decision.Message, message) || c.wantRefusal == "") {
				t.Errorf("%s: %+v", c.reason, decision)
			}
			if got != nil && got.Namespace != c.want {
				t.Errorf("%s: that of %s", c.reason, got.Namespace)
			}
		})
	}
}
