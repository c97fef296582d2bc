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
	importing   = "Importing"
	imported    = "Imported"
	rollingBack = "RollingBack"
	rolledBack  = "RolledBack"
)

// errOtherRun is no conflict to be settled by another try: what this run believes of the import is old.
var errOtherRun = errors.New("somebody else has written the journal since this run began: does another import of the pool run?")

// entriesPerPart bounds the size of a ConfigMap: an entry takes some 2 KB before it is compressed.
const entriesPerPart = 200

// journal is what an import is about, kept in ConfigMaps of the cluster: it survives whoever runs the import, and
// anybody can go on. The parts, with every claim and IPAddress as it was, are written first and never change; the
// head is written last, and makes them count.
type journal struct {
	Phase  string `json:"phase"`
	Source Source `json:"source"`
	// Target is the name of the pool of ours.
	Target string `json:"target"`
	Parts  int    `json:"parts"`
	// Released are entries whose claim went while nobody of ours looked: they are not brought back.
	Released []string `json:"released,omitempty"`

	// Metal3 is the pool, where the import takes it away.
	Metal3 *unstructured.Unstructured `json:"metal3,omitempty"`

	Entries []Entry `json:"-"`

	head *corev1.ConfigMap
}

const (
	headKey = "journal.json"
	partKey = "entries.json.gz"
)

// store keeps the journal of one source.
type store struct {
	client    client.Client
	namespace string
	source    Source
}

func (s store) name(suffix string) string {
	return "import-" + strings.ToLower(s.source.Kind) + "-" + s.source.Name + suffix
}

func (s store) configMap(suffix string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.namespace, Name: s.name(suffix), Labels: map[string]string{"app.kubernetes.io/managed-by": "kubectl-butler_ipam"},
	}}
}

// read returns the journal, nil if there is none.
func (s store) read(ctx context.Context) (*journal, error) {
	head := s.configMap("")
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
	if j.Phase == rolledBack {
		return j, nil // its parts may be gone already
	}
	for i := range j.Parts {
		part := s.configMap(fmt.Sprintf("-%d", i))
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(part), part); err != nil {
			return nil, fmt.Errorf("reading the journal: %w", err)
		}
		entries, err := unpack(part.BinaryData[partKey])
		if err != nil {
			return nil, fmt.Errorf("reading the journal in ConfigMap %s/%s: %w", s.namespace, part.Name, err)
		}
		j.Entries = append(j.Entries, entries...)
	}
	return j, nil
}

// elsewhere returns another namespace that has the journal of the source; empty: none has.
func (s store) elsewhere(ctx context.Context) (namespace string, err error) {
	head := s.configMap("")
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

// begin writes the journal of an import that is about to begin. Parts of one that never began are replaced.
func (s store) begin(ctx context.Context, j *journal) error {
	for rest := j.Entries; len(rest) > 0; j.Parts++ {
		n := min(len(rest), entriesPerPart)
		packed, err := pack(rest[:n])
		if err != nil {
			return fmt.Errorf("writing the journal: %w", err)
		}
		suffix := fmt.Sprintf("-%d", j.Parts)
		if err := s.remove(ctx, suffix); err != nil {
			return fmt.Errorf("writing the journal: %w", err)
		}
		part := s.configMap(suffix)
		part.BinaryData, part.Immutable = map[string][]byte{partKey: packed}, ptr.To(true)
		if err := s.client.Create(ctx, part); err != nil {
			return fmt.Errorf("writing the journal: %w", err)
		}
		rest = rest[n:]
	}
	j.Phase = importing
	j.head = s.configMap("")
	if err := j.fill(); err != nil {
		return err
	}
	if err := s.client.Create(ctx, j.head); err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	return nil
}

// enter writes the next phase, if nobody else has written the journal since it was read.
func (s store) enter(ctx context.Context, j *journal, phase string) error {
	j.Phase = phase
	return s.save(ctx, j)
}

func (s store) save(ctx context.Context, j *journal) error {
	if err := j.fill(); err != nil {
		return err
	}
	if err := s.client.Update(ctx, j.head); apierrors.IsConflict(err) {
		return errOtherRun
	} else if err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	return nil
}

// forget deletes the journal, its head last.
func (s store) forget(ctx context.Context, j *journal) error {
	for i := range j.Parts {
		if err := s.remove(ctx, fmt.Sprintf("-%d", i)); err != nil {
			return fmt.Errorf("deleting the journal: %w", err)
		}
	}
	switch err := client.IgnoreNotFound(exact.Delete(ctx, s.client, j.head)); {
	case apierrors.IsConflict(err):
		return errOtherRun
	case err != nil:
		return fmt.Errorf("deleting the journal: %w", err)
	}
	return nil
}

// remove deletes a part, if there is one: as it is now, for none is changed once it is written.
func (s store) remove(ctx context.Context, suffix string) error {
	return retry.RetryOnConflict(patience, func() error {
		part := s.configMap(suffix)
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(part), part); err != nil {
			return client.IgnoreNotFound(err)
		}
		return client.IgnoreNotFound(exact.Delete(ctx, s.client, part))
	})
}

func (j *journal) fill() error {
	text, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	j.head.Data = map[string]string{headKey: string(text)}
	return nil
}

func pack(entries []Entry) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	err := errors.Join(json.NewEncoder(w).Encode(entries), w.Close())
	return out.Bytes(), err
}

func unpack(packed []byte) (out []Entry, err error) {
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
