package integration

import (
	"context"
	"fmt"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The control plane is one of its own, as it goes back in time: cp and k8s mean that one here.
var _ = Describe("An etcd that is put back under a manager that runs", func() {
	const ns, each = "default", 4

	BeforeEach(func() {
		suite, admin := cp, k8s
		DeferCleanup(func() { cp, k8s = suite, admin })
		var err error
		cp, err = framework.Start(framework.Options{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(own *framework.ControlPlane) { Expect(own.Stop()).To(Succeed()) }, cp)
		k8s, err = cp.Client()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(showFailed, ns)
	})

	claim := func(ctx context.Context, names string) {
		GinkgoHelper()
		for i := range each {
			create(ctx, framework.MakeClaim(ns, fmt.Sprint(names, i)).Pool("p").Obj())
		}
	}

	It("ends the manager, and the next one serves what is there", func(ctx SpecContext) { // R7
		create(ctx, framework.MakePool("p").Namespace(ns).Addresses("10.0.0.1-10.0.0.12").Obj())
		m := startManager(ctx)
		claim(ctx, "stays-")
		claim(ctx, "ends-")
		expectAtRest(ctx, ns, 2*each)
		given := map[string]string{}
		for i := range each {
			for _, name := range []string{fmt.Sprint("stays-", i), fmt.Sprint("ends-", i)} {
				given[name] = addressOf(ctx, ns, name).Spec.Address
			}
		}
		was := filepath.Join(GinkgoT().TempDir(), "etcd")
		Expect(cp.Backup(was)).To(Succeed())

		By("giving what the backup has for others")
		lengthenHistory(ctx)
		for i := range each {
			deleteClaim(ctx, ns, fmt.Sprint("ends-", i))
		}
		claim(ctx, "later-")
		claim(ctx, "last-")
		expectAtRest(ctx, ns, 3*each) // all that the pool has
		Expect(ended(m)).To(BeFalse(), "a backup is no reason to end")

		By("putting it back")
		Expect(cp.Restore(was)).To(Succeed())
		history := &invariants.History{}
		Expect(history.Moment(objects(ctx, ns))).To(BeEmpty())
		claim(ctx, "new-")
		// A manager asks again in its own time whether the API server is there.
		Eventually(func() bool {
			Expect(history.Moment(objects(ctx, ns))).To(BeEmpty())
			return ended(m)
		}).WithTimeout(framework.Late).Should(BeTrue(), "the manager does not notice")
		Expect(m.LogTail(1000)).To(ContainSubstring("its etcd was put back while this process ran"))
		Expect(m.Stop()).NotTo(Succeed(), "its end is to be seen as a failure, so that it is started again")
		Expect(history.Moment(objects(ctx, ns))).To(BeEmpty())

		By("starting another manager")
		startManager(ctx)
		expectAtRest(ctx, ns, 3*each)
		Expect(history.Moment(objects(ctx, ns))).To(BeEmpty())
		for name, address := range given {
			Expect(addressOf(ctx, ns, name).Spec.Address).To(Equal(address), name)
		}
	})
})

// lengthenHistory makes more writes than an API server does when it starts: a history that is put back is shorter.
func lengthenHistory(ctx context.Context) {
	GinkgoHelper()
	const writes = 300
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "history"}}
	create(ctx, note)
	for i := range writes {
		note.Data = map[string]string{"write": fmt.Sprint(i)}
		Expect(k8s.Update(ctx, note)).To(Succeed())
	}
}
