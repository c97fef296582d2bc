package migrate

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
)

// The phases of an import.
const (
	phaseImporting   = "Importing"
	phaseImported    = "Imported"
	phaseRollingBack = "RollingBack"
	phaseRolledBack  = "RolledBack"
)

// errConcurrentRun is a conflict that a retry cannot resolve: this run's knowledge of the import is out of date.
var errConcurrentRun = errors.New("another run has written the journal since this run began: does another import of the pool run?")

// entriesPerPart limits the size of a ConfigMap: an entry takes about 2 KB before compression.
const entriesPerPart = 200

// journal records an import in ConfigMaps of the cluster: it survives the process that runs the import, and another one
// can resume it. The parts, which have every claim and IPAddress as it was, are written first and never change; the
// head is written last, and makes them valid.
type journal struct {
	Phase  string `json:"phase"`
	Source Source `json:"source"`
	// Target is the name of our pool.
	Target    string `json:"target"`
	PartCount int    `json:"parts"`
	// Released are the entries whose claim was deleted while no provider served it: they are not restored.
	Released []string `json:"released,omitempty"`

	// Metal3 is the old pool, where the import deletes it.
	Metal3 *unstructured.Unstructured `json:"metal3,omitempty"`

	Entries []Entry `json:"-"`

	head *corev1.ConfigMap
}

const (
	headKey = "journal.json"
	partKey = "entries.json.gz"
)

// journalStore stores the journal of one source.
type journalStore struct {
	client    client.Client
	namespace string
	source    Source
}

func (s journalStore) configMapName(suffix string) string {
	return "import-" + strings.ToLower(s.source.Kind) + "-" + s.source.Name + suffix
}

func (s journalStore) newConfigMap(suffix string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.namespace, Name: s.configMapName(suffix), Labels: map[string]string{"app.kubernetes.io/managed-by": "kubectl-butler_ipam"},
	}}
}

// readJournal returns the journal; nil if there is none.
func (s journalStore) readJournal(ctx context.Context) (*journal, error) {
	head := s.newConfigMap("")
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(head), head); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}
	j := &journal{head: head}
	if err := json.Unmarshal([]byte(head.Data[headKey]), j); err != nil {
		return nil, fmt.Errorf("reading the journal in ConfigMap %s/%s: %w", s.namespace, head.Name, err)
	}
	if j.Source != s.source {
		return nil, fmt.Errorf("ConfigMap %s/%s is the journal of %s; name another --journal-namespace", s.namespace, head.Name, j.Source)
	}
	if j.Phase == phaseRolledBack {
		return j, nil // its parts may be deleted already
	}
	for i := range j.PartCount {
		part := s.newConfigMap(fmt.Sprintf("-%d", i))
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(part), part); err != nil {
			return nil, fmt.Errorf("reading the journal: %w", err)
		}
		entries, err := decompressEntries(part.BinaryData[partKey])
		if err != nil {
			return nil, fmt.Errorf("reading the journal in ConfigMap %s/%s: %w", s.namespace, part.Name, err)
		}
		j.Entries = append(j.Entries, entries...)
	}
	return j, nil
}

// findOtherNamespace returns a namespace that has a journal of the source; "" if there is none.
func (s journalStore) findOtherNamespace(ctx context.Context) (namespace string, err error) {
	head := s.newConfigMap("")
	var all corev1.ConfigMapList
	if err := s.client.List(ctx, &all, client.MatchingLabels(head.Labels)); err != nil {
		return "", fmt.Errorf("listing journals: %w", err)
	}
	for i := range all.Items {
		j := &journal{}
		if err := json.Unmarshal([]byte(all.Items[i].Data[headKey]), j); err == nil && j.Source == s.source {
			return all.Items[i].Namespace, nil
		}
	}
	return "", nil
}

// createJournal writes the journal of an import that is about to begin. It replaces parts of an import that never
// began.
func (s journalStore) createJournal(ctx context.Context, j *journal) error {
	for rest := j.Entries; len(rest) > 0; j.PartCount++ {
		n := min(len(rest), entriesPerPart)
		packed, err := compressEntries(rest[:n])
		if err != nil {
			return fmt.Errorf("writing the journal: %w", err)
		}
		suffix := fmt.Sprintf("-%d", j.PartCount)
		if err := s.deletePart(ctx, suffix); err != nil {
			return fmt.Errorf("writing the journal: %w", err)
		}
		part := s.newConfigMap(suffix)
		part.BinaryData, part.Immutable = map[string][]byte{partKey: packed}, ptr.To(true)
		if err := s.client.Create(ctx, part); err != nil {
			return fmt.Errorf("writing the journal: %w", err)
		}
		rest = rest[n:]
	}
	j.Phase = phaseImporting
	j.head = s.newConfigMap("")
	if err := j.encodeHead(); err != nil {
		return err
	}
	if err := s.client.Create(ctx, j.head); err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	return nil
}

// enterPhase writes the next phase. It returns errConcurrentRun if the journal was written since it was read.
func (s journalStore) enterPhase(ctx context.Context, j *journal, phase string) error {
	j.Phase = phase
	return s.saveJournal(ctx, j)
}

func (s journalStore) saveJournal(ctx context.Context, j *journal) error {
	if err := j.encodeHead(); err != nil {
		return err
	}
	if err := s.client.Update(ctx, j.head); apierrors.IsConflict(err) {
		return errConcurrentRun
	} else if err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	return nil
}

// deleteJournal deletes the journal, its head last.
func (s journalStore) deleteJournal(ctx context.Context, j *journal) error {
	for i := range j.PartCount {
		if err := s.deletePart(ctx, fmt.Sprintf("-%d", i)); err != nil {
			return fmt.Errorf("deleting the journal: %w", err)
		}
	}
	switch err := client.IgnoreNotFound(exact.DeleteWithPreconditions(ctx, s.client, j.head)); {
	case apierrors.IsConflict(err):
		return errConcurrentRun
	case err != nil:
		return fmt.Errorf("deleting the journal: %w", err)
	}
	return nil
}

// deletePart deletes a part if it exists, in its current version: parts do not change once they are written.
func (s journalStore) deletePart(ctx context.Context, suffix string) error {
	return retry.RetryOnConflict(conflictBackoff, func() error {
		part := s.newConfigMap(suffix)
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(part), part); err != nil {
			return client.IgnoreNotFound(err)
		}
		return client.IgnoreNotFound(exact.DeleteWithPreconditions(ctx, s.client, part))
	})
}

func (j *journal) encodeHead() error {
	text, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	j.head.Data = map[string]string{headKey: string(text)}
	return nil
}

func compressEntries(entries []Entry) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	err := errors.Join(json.NewEncoder(w).Encode(entries), w.Close())
	return out.Bytes(), err
}

func decompressEntries(packed []byte) (out []Entry, err error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, 64<<20))
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(text, &out)
	return out, err
}
