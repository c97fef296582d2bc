package integration

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// tokenOf creates a service account and returns a token of it.
func tokenOf(ctx context.Context, ns, name string) string {
	GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	create(ctx, account)
	request := &authenticationv1.TokenRequest{}
	Expect(k8s.SubResource("token").Create(ctx, account, request)).To(Succeed())
	return request.Status.Token
}

// mayReadPage binds the role of config/rbac to a service account.
func mayReadPage(ctx context.Context, ns, account string) {
	GinkgoHelper()
	text, err := os.ReadFile("../../config/rbac/page_reader_role.yaml")
	Expect(err).NotTo(HaveOccurred())
	role := &rbacv1.ClusterRole{}
	Expect(yaml.UnmarshalStrict(text, role)).To(Succeed())
	role.Name = ns + "-" + role.Name
	create(ctx, role, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: account}},
	})
}

// ask requests a page, with a token if there is one, and returns the status code and the body.
func ask(ctx context.Context, url, token string) (code int, text string) {
	GinkgoHelper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// The manager creates its certificate itself.
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := c.Do(req)
	Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	Expect(err).NotTo(HaveOccurred())
	return resp.StatusCode, string(body)
}

var _ = Describe("The page of pools", func() {
	It("shows pools, their users, waiting claims and their usage over time", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.31.0.0/30").Obj(), framework.MakeClaim(ns, "has").Pool("p").Obj())
		address := addressOf(ctx, ns, "has").Spec.Address
		create(ctx, framework.MakeClaim(ns, "also").Pool("p").Obj())
		addressOf(ctx, ns, "also")
		create(ctx, framework.MakeClaim(ns, "waits").Pool("p").Obj())
		refusalOf(ctx, ns, "waits", "PoolExhausted")

		// The manager may not have observed yet what the API server has confirmed to the test.
		shows := func(path string, parts ...types.GomegaMatcher) {
			GinkgoHelper()
			Eventually(func() string {
				_, text := ask(ctx, m.PageURL()+path, "")
				return text
			}).Should(And(parts...), path)
		}
		shows("api/pools", ContainSubstring(`"elected":true`), ContainSubstring(`"total":2,"used":2`), ContainSubstring(`"holder":true`))
		shows("api/search?q="+address, ContainSubstring(`"use":"claim"`), ContainSubstring(`"name":"has"`))
		shows("api/waiting?pool=NetworkPool/"+ns+"/p", ContainSubstring(`"name":"waits"`), ContainSubstring("PoolExhausted"))
		shows("api/usage?pool=NetworkPool/"+ns+"/p", ContainSubstring(`"since"`))
	})

	It("shows the leases of a pool", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		pool, shop, late := leasePool(ns, "10.31.1.0/30"), framework.MakeLease(ns, "shop").Obj(), framework.MakeLease(ns, "late").Obj()
		pool.Spec.Leases.QuotaPerNamespace = ptr.To[int32](1)
		create(ctx, pool, shop)
		address := leasedTo(ctx, shop)
		create(ctx, late)
		Eventually(func() string {
			_, text := ask(ctx, m.PageURL()+"api/leases?pool=NetworkPool/"+ns+"/p", "")
			return text
		}).Should(And(
			ContainSubstring(`"range":"`+address+`"`), ContainSubstring(`"use":"lease","kind":"IPLease","namespace":"`+ns+`","name":"shop"`),
			ContainSubstring(`"use":"waiting","kind":"IPLease","namespace":"`+ns+`","name":"late"`), ContainSubstring("QuotaExceeded"),
		))
		_, list := ask(ctx, m.PageURL()+"api/pools", "")
		Expect(list).To(ContainSubstring(`"leases":2,"givesLeases":true,"leaseQuota":1`))
	})

	It("serves its files without a role, and the contents of pools only to users with the role", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns, "--insecure-diagnostics=false")
		url := strings.Replace(m.PageURL(), "http://", "https://", 1)
		unauthorized, reader := tokenOf(ctx, ns, "stranger"), tokenOf(ctx, ns, "reader")
		mayReadPage(ctx, ns, "reader")
		status := func(path, token string) int {
			code, _ := ask(ctx, url+path, token)
			return code
		}
		// The manager is ready before it has created its certificate.
		Eventually(func() error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.Split(url, "/")[2])
			if err == nil {
				err = conn.Close()
			}
			return err
		}).Should(Succeed())
		Expect(status("", "")).To(Equal(http.StatusOK))
		Expect(status("page.js", "")).To(Equal(http.StatusOK))
		for _, path := range []string{"api/pools", "api/usage", "api/search?q=10.0.0.1"} {
			Expect(status(path, "")).To(Equal(http.StatusUnauthorized), path)
			Expect(status(path, unauthorized)).To(Equal(http.StatusForbidden), path)
			Eventually(func() int { return status(path, reader) }).Should(Equal(http.StatusOK), path)
		}
		code, _ := ask(ctx, strings.TrimSuffix(url, "pools/")+"metrics", reader)
		Expect(code).To(Equal(http.StatusForbidden), "the role is for the page alone")
		Expect(m.Kill()).To(Succeed()) // its metrics cannot be read, so the check for idleness is impossible
	})
})
