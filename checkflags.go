package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
)

// check returns what is wrong with the flags, one line for each: before anything is started, and before the API
// server is looked for. A value that makes no sense would otherwise be found out much later, or never.
func (o *options) check() error {
	var wrong []error
	complain := func(flag string, value any, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("--%s=%v: %s", flag, value, fmt.Sprintf(format, args...)))
	}
	for flag, n := range map[string]int{"pool-concurrency": o.concurrency, "writers": o.writers} {
		if n < 1 {
			complain(flag, n, "at least 1 is needed, or nothing is served")
		}
	}
	if _, err := shard.Parse(o.shard); err != nil {
		complain("shard", o.shard, "%v", err)
	}
	for flag, name := range map[string]string{"namespace": o.namespace, "leader-elect-namespace": o.leaseNamespace} {
		if problems := validation.IsDNS1123Label(name); name != "" && len(problems) > 0 {
			complain(flag, name, "is not the name of a namespace: %s", problems[0])
		}
	}
	if problems := validation.IsValidLabelValue(o.watchFilter); len(problems) > 0 {
		complain("watch-filter", o.watchFilter, "no label can have this value: %s", problems[0])
	}
	for flag, d := range map[string]time.Duration{"audit-interval": o.auditInterval, "shrink-grace": o.shrinkGrace} {
		if d < 0 {
			complain(flag, d, "a time is not negative")
		}
	}
	if o.orphanGrace <= 0 {
		complain("orphan-grace", o.orphanGrace, "some time is needed: a restore brings an object after what refers to it")
	}
	o.checkLease(complain)
	o.checkPorts(complain)
	return sorted(wrong)
}

// checkLease has a leader give up before others take its place.
func (o *options) checkLease(complain func(flag string, value any, format string, args ...any)) {
	if !o.leaderElect {
		return
	}
	if o.retry <= 0 {
		complain("leader-elect-retry-period", o.retry, "must be longer than 0")
	}
	if least := time.Duration(leaderelection.JitterFactor * float64(o.retry)); o.renew <= least {
		complain("leader-elect-renew-deadline", o.renew, "must be longer than --leader-elect-retry-period and a fifth: %s", least)
	}
	if o.lease <= o.renew {
		complain("leader-elect-lease-duration", o.lease, "must be longer than --leader-elect-renew-deadline: %s", o.renew)
	}
}

// checkPorts looks at where the manager is to listen.
func (o *options) checkPorts(complain func(flag string, value any, format string, args ...any)) {
	if o.webhookPort < 0 || o.webhookPort > 65535 {
		complain("webhook-port", o.webhookPort, "a port is at most 65535; 0 turns the webhooks off")
	}
	for flag, address := range map[string]string{"health-probe-bind-address": o.healthAddress, "diagnostics-address": o.diagnostics.DiagnosticsAddress} {
		_, port, err := net.SplitHostPort(address)
		n, notNumber := strconv.Atoi(port)
		if off := address == "" || address == "0"; !off && (err != nil || notNumber != nil || n < 0 || n > 65535) {
			complain(flag, address, "write host:port, or :port for every address of this machine; 0 turns it off")
		}
	}
}

// checkCertificate returns why the webhooks cannot be served. The server finds out, too, after the caches were started.
func (o *options) checkCertificate() error {
	if o.webhookPort == 0 {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(filepath.Join(o.webhookCerts, "tls.crt"), filepath.Join(o.webhookCerts, "tls.key")); err != nil {
		return fmt.Errorf("--webhook-cert-dir=%s: %w; mount the certificate there, or turn the webhooks off with --webhook-port=0", o.webhookCerts, err)
	}
	return nil
}

// sorted joins errors in the order of their texts: the flags were not looked at in any.
func sorted(errs []error) error {
	texts := make([]string, 0, len(errs))
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	if len(texts) == 0 {
		return nil
	}
	slices.Sort(texts)
	return errors.New(strings.Join(texts, "\n"))
}
