package containerd

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/sandbox"
)

// TestPodPolicies: the annotations of a pod are its labels and its policy, and so is its namespace
// of Kubernetes. They decide which pods reach it, also after its sandbox was made again.
func TestPodPolicies(t *testing.T) {
	requireHost(t)
	plugins, _ := beginManaged(t, `primary = "allocnet"`, "pod_annotations = true", `labels_from = ["namespace=K8S_POD_NAMESPACE"]`)
	h := newHost(t, plugins)
	h.requireUnchanged()
	k := newKubelet(h)
	list := pods(4)
	front, stranger, foreign, db := list[0], list[1], list[2], list[3]
	front.annotations = map[string]string{"allocnet/labels": "app=front"}
	stranger.annotations = map[string]string{"example.com/note": "app=front"}
	foreign.annotations, foreign.namespace = front.annotations, "other"
	db.annotations = map[string]string{"allocnet/policy": `{"ingress": {"default": "deny", "rules": [
		{"peers": [{"labels": {"app": "front", "namespace": "default"}}]}]}}`}
	k.all(list, k.run)
	k.all(list, k.serve)
	for range 2 {
		k.requireReaches(front, db, true)
		k.requireReaches(stranger, db, false)
		k.requireReaches(foreign, db, false)
		k.requireReaches(db, foreign, true)
		k.all([]*pod{db}, k.stop)
		k.all([]*pod{db}, k.remove)
		k.all([]*pod{db}, k.run)
		k.all([]*pod{db}, k.serve)
	}

	wrong := &pod{name: "wrong", port: 21000, annotations: map[string]string{"allocnet/policy": "isolate"}}
	require.ErrorContains(t, k.run(t.Context(), wrong), `annotation allocnet/policy: "isolate" is neither a policy in JSON nor a list of presets`)
	k.removeAll()
}

// requireReaches requires that one pod reaches the server of another one, or that it does not.
func (k *kubelet) requireReaches(from, to *pod, reaches bool) {
	k.t.Helper()
	source, target := k.allocation(from), k.allocation(to)
	s, err := sandbox.Open(source.Netns)
	require.NoError(k.t, err)
	defer s.Close()
	connect := func() (err error) {
		return s.Do(func() error {
			c, err := net.DialTimeout("tcp4", net.JoinHostPort(target.Status.Address, "80"), time.Second)
			if err == nil {
				err = c.Close()
			}
			return err
		})
	}
	if !reaches {
		require.True(k.t, isTimeout(connect()), "%s to %s", from.name, to.name)
		return
	}
	eventually(k.t, from.name+" reaches "+to.name, func() bool {
		err := connect()
		require.False(k.t, isTimeout(err), "%s to %s", from.name, to.name)
		return err == nil // the server may be starting
	})
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// allocation returns the allocation of a pod.
func (k *kubelet) allocation(p *pod) *allocnet.Record {
	k.t.Helper()
	r, err := client.New(client.Config{}).Get(k.t.Context(), p.id+".eth0")
	require.NoError(k.t, err)
	require.NotNil(k.t, r.Status)
	return r
}
