package clusterctl

import (
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	release = "v0.1.0"
	newer   = "v0.1.1"
)

var (
	repo   repository
	binary string
)

func TestClusterctl(t *testing.T) {
	if testing.Short() {
		t.Skip("it installs and moves whole management clusters, which takes minutes: make test-all")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(framework.EventTimeout)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	RunSpecs(t, "Clusterctl")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	repo = makeRepository(ctx, release, newer)
	var err error
	binary, err = framework.BuildManager(ctx, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
})
