package recipes

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/onsi/gomega"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// TestArgoHealth runs the health check of docs/gitops.md on objects that a manager serves.
func TestArgoHealth(t *testing.T) {
	cp, err := framework.StartControlPlane(framework.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := cp.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	older := framework.MakePool("older").CIDR("10.0.0.0/28").Obj()
	served := map[client.Object]string{
		older: "Healthy",
		framework.MakePool("paused").CIDR("10.0.1.0/28").Annotate(clusterv1.PausedAnnotation, "").Obj(): "Suspended",
		framework.MakePool("empty").CIDR("10.0.2.0/28").Reserved("10.0.2.0/28").Obj():                   "Degraded",
		framework.MakeAllocation(framework.DefaultNamespace, "fits").Pool("older").Count(2).Obj():       "Healthy",
		framework.MakeAllocation(framework.DefaultNamespace, "large").Pool("older").Count(100).Obj():    "Degraded",
	}
	for obj := range served {
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		if got := health(t, obj); got != "Progressing" {
			t.Errorf("%T %s, which no manager has served, is %s", obj, obj.GetName(), got)
		}
	}
	m, err := framework.StartManager(t.Context(), framework.ManagerOptions{Kubeconfig: cp.Kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			_ = m.Stop()
		}
	})
	g := gomega.NewWithT(t)
	for obj, want := range served {
		g.Eventually(func() (string, error) {
			err := c.Get(t.Context(), client.ObjectKeyFromObject(obj), obj)
			return health(t, obj), err
		}).WithTimeout(framework.EventTimeout).Should(gomega.Equal(want), "%T %s", obj, obj.GetName())
	}

	stopped = true
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	older.Spec.Addresses = []string{"10.0.3.0/28"}
	if err := c.Update(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	if got := health(t, older); got != "Progressing" {
		t.Errorf("a pool whose change no manager has seen is %s", got)
	}
	meta.SetStatusCondition(&older.Status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: "Adopting", Message: "waits"})
	older.Status.ObservedGeneration = older.Generation
	if got := health(t, older); got != "Progressing" {
		t.Errorf("a pool that is being adopted is %s", got)
	}
}

// health runs the script as Argo CD does: with the same libraries, and the object in the variable obj.
func health(t *testing.T, obj client.Object) string {
	t.Helper()
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := l.CallByParam(lua.P{Fn: l.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	l.SetGlobal("obj", luaValue(l, value))
	if err := l.DoString(script(t)); err != nil {
		t.Fatal(err)
	}
	result := l.ToTable(-1)
	if result.RawGetString("message").String() == "" {
		t.Errorf("%T %s has no message", obj, obj.GetName())
	}
	return result.RawGetString("status").String()
}

func luaValue(l *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		out := l.NewTable()
		for key, inner := range v {
			out.RawSetString(key, luaValue(l, inner))
		}
		return out
	case []any:
		out := l.NewTable()
		for _, inner := range v {
			out.Append(luaValue(l, inner))
		}
		return out
	case string:
		return lua.LString(v)
	case float64:
		return lua.LNumber(v)
	case bool:
		return lua.LBool(v)
	default:
		return lua.LNil
	}
}

func script(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/gitops.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)\n```lua\n(.*?)\n```\n").FindSubmatch(text)
	if found == nil {
		t.Fatal("docs/gitops.md has no script")
	}
	return string(found[1])
}
