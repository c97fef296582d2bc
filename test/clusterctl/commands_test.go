package clusterctl

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// page is a page of the documentation, with its path in the project.
type page struct{ path, text string }

// pages returns the pages of the documentation, except decisions, the changelog, and requirements, which name
// programs without instructions to run them.
func pages() (out []page) {
	GinkgoHelper()
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "docs/*.md"} {
		paths, err := filepath.Glob(filepath.Join(repo.root, pattern))
		Expect(err).NotTo(HaveOccurred())
		for _, path := range paths {
			if filepath.Base(path) == "requirements.md" {
				continue
			}
			text, err := os.ReadFile(path)
			Expect(err).NotTo(HaveOccurred())
			name, err := filepath.Rel(repo.root, path)
			Expect(err).NotTo(HaveOccurred())
			out = append(out, page{name, string(text)})
		}
	}
	return out
}

const programs = `(?:clusterctl|docker|go|kind|kubectl|kustomize|make|podman|skopeo|mkdir) `

var (
	fence    = regexp.MustCompile("(?s)\n```.*?\n```")
	indented = regexp.MustCompile(`(?m)^ {4,}(` + programs + `(?:.*\\\n)*.*)$`)
	span     = regexp.MustCompile("`(" + programs + "[^`]*)`")
	session  = regexp.MustCompile("(?s)\n```console\n(.*?)\n```")
	manifest = regexp.MustCompile("(?s)[Ss]ave as `([a-z.]+)`:\n\n```yaml\n(.*?\n)```")
)

// commands returns the commands in the instructions of a page, outside of its sessions: in indented lines and in code
// spans.
func (p page) commands() (out []string) {
	text := fence.ReplaceAllString(p.text, "")
	for _, pattern := range []*regexp.Regexp{indented, span} {
		for _, match := range pattern.FindAllStringSubmatch(text, -1) {
			command, _, _ := strings.Cut(match[1], " # ")
			out = append(out, strings.TrimSpace(command))
		}
	}
	return out
}

// sessions returns the terminal sessions of a page: the commands after a $, and their output.
func (p page) sessions() (out [][2]string) {
	for _, block := range session.FindAllStringSubmatch(p.text, -1) {
		for shown := range strings.SplitSeq("\n"+block[1], "\n$ ") {
			if shown == "" {
				continue
			}
			command, printed, _ := strings.Cut(shown, "\n")
			if strings.HasSuffix(command, "<<EOF") {
				here, rest, _ := strings.Cut(printed, "\nEOF\n")
				command, printed = command+"\n"+here+"\nEOF", rest
			}
			out = append(out, [2]string{command, printed})
		}
	}
	return out
}

// terminal runs the commands that a reader would type.
type terminal struct {
	dir string
	env []string
}

// newTerminal returns a terminal in a directory that is connected to a site. Its path has the programs that the
// documentation uses.
func newTerminal(ctx context.Context, s *site, dir string) terminal {
	GinkgoHelper()
	bin := GinkgoT().TempDir()
	for name, path := range map[string]string{"kubectl": "k8s/kubectl", "clusterctl": "tools/clusterctl", "kustomize": "tools/kustomize"} {
		Expect(os.Symlink(filepath.Join(repo.root, "bin", path), filepath.Join(bin, name))).To(Succeed())
	}
	repo.run(ctx, "go", "build", "-buildvcs=false", "-o", filepath.Join(bin, "kubectl-butler_ipam"), "./cmd/kubectl-butler_ipam")
	return terminal{dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+s.Kubeconfig, "XDG_CONFIG_HOME="+repo.dir,
		"KUBE_EDITOR=true", // an editor that changes nothing
		"CLUSTERCTL_DISABLE_VERSIONCHECK=true")}
}

// reader replaces the placeholders in commands by values, as a reader does.
var reader = strings.NewReplacer("-n NAMESPACE NAME", "-n team-a prod", "NAMESPACE", "team-a", "NAME", "prod", "ADDRESS", "10.90.0.1")

// run runs a command as written, and returns its output.
func (t terminal) run(ctx context.Context, command string) string {
	GinkgoHelper()
	out, err := t.try(ctx, command)
	Expect(err).NotTo(HaveOccurred(), "%s\n%s", command, out)
	return out
}

// try is run for a command that may fail.
func (t terminal) try(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", reader.Replace(command))
	cmd.Dir, cmd.Env = t.dir, t.env
	out, err := cmd.CombinedOutput()
	GinkgoWriter.Printf("$ %s\n%s\n", command, out)
	return string(out), err
}
