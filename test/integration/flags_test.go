package integration

import (
	"errors"
	"os/exec"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("The command line of the manager", func() {
	DescribeTable("is rejected at once with a message that names", func(ctx SpecContext, message string, args ...string) {
		// There is no API server: the flags are validated before anything is read from it.
		cmd := exec.CommandContext(ctx, binary, append([]string{"--kubeconfig=/does/not/exist"}, args...)...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		Expect(errors.As(err, &exit)).To(BeTrue(), "%v", err)
		Expect(exit.ExitCode()).To(Equal(2), "%s", out)
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		Expect(lines).To(HaveExactElements(ContainSubstring(message), ContainSubstring("--help"))) // not the list of all flags
	},
		Entry("a number out of range", "--writers=-1: at least 1", "--writers=-1", "--webhook-port=0"),
		Entry("a word in place of a number", `invalid argument "x" for "--writers" flag`, "--writers=x"),
		Entry("a duration without a unit", `invalid argument "5" for "--orphan-grace" flag`, "--orphan-grace=5"),
		Entry("an unknown flag", "unknown flag: --writer", "--writer=1"),
		Entry("an argument that is not a flag", `"serve": butler-ipam-manager takes flags only`, "serve"),
		Entry("a certificate that does not exist", "--webhook-cert-dir=/does/not/exist", "--webhook-cert-dir=/does/not/exist"),
	)

	It("lists all flags with --help", func(ctx SpecContext) {
		out, err := exec.CommandContext(ctx, binary, "--help").CombinedOutput()
		Expect(err).NotTo(HaveOccurred())
		Expect(string(out)).To(And(ContainSubstring("--writers"), ContainSubstring("--kubeconfig"), ContainSubstring("--logging-format")))
	})
})
