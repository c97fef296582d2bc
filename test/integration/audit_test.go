package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// W27: the manager logs the line that the runbook searches for, with the details that they need.
var _ = Describe("The audit", func() {
	It("logs an address that two IPAddresses have, as the runbook describes", func(ctx SpecContext) {
		root, err := framework.FindRepoRoot()
		Expect(err).NotTo(HaveOccurred())
		page, err := os.ReadFile(filepath.Join(root, "docs", "alerts.md"))
		Expect(err).NotTo(HaveOccurred())
		_, runbook, _ := strings.Cut(string(page), "\n## ButlerAddressHeldTwice\n")
		command := regexp.MustCompile("`kubectl logs [^`]*\\| grep \"([^\"]+)\"`").FindStringSubmatch(runbook)
		Expect(command).NotTo(BeNil())

		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.221.0.0/28").Obj(),
			madeAddress(ns, "one", "10.221.0.5", 28), madeAddress(ns, "two", "10.221.0.5", 28))
		m := namespaceManager(ctx, ns, "--audit-interval=1s")
		Eventually(func(g Gomega) {
			g.Expect(m.ReadMetric(ctx, "butler_ipam_audit_duplicate_addresses")).To(BeEquivalentTo(1))
			log, err := os.ReadFile(m.LogFile)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(strings.Split(string(log), "\n")).To(ContainElement(And(
				ContainSubstring(command[1]), ContainSubstring("10.221.0.5"), ContainSubstring(ns+"/one"), ContainSubstring(ns+"/two"))))
		}).Should(Succeed())
		Expect(m.Stop()).To(Succeed())
	})
})
