package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/api"
	"github.com/allocnet/allocnet/cmd/internal/server/apitest"
	"github.com/allocnet/allocnet/internal/wire"
)

// publishedEvents are events as the daemon sends them, and their texts.
var publishedEvents = []struct{ kind, data, text string }{
	{"operation", `{"operation":"setup","id":"web","networks":["front","back"],"engine":"native","seconds":0.01234567,"outcome":"ok",` +
		`"steps":[{"step":"add","at":0.001,"seconds":0.0101,"outcome":"ok"},{"step":"record","at":0.012,"seconds":0.00002,"outcome":"ok"}]}`,
		"setup web front,back native ok in 12.35ms (add 10.1ms, record 20µs)"},
	{"operation", `{"operation":"setup","id":"c.eth0","networks":["front"],"engine":"exec","args":{"POD":"web-1","NS":"shop"},"seconds":0.001,"outcome":"ok"}`,
		"setup c.eth0 front exec NS=shop POD=web-1 ok in 1ms"},
	{"operation", `{"operation":"gc","seconds":2,"outcome":"ok"}`, "gc ok in 2s"},
	{"operation", `{"operation":"check","id":"web","seconds":0.001,"outcome":"unhealthy","error":"port 80 is away"}`,
		"check web unhealthy in 1ms: port 80 is away"},
	{"forced", `{"id":"web","removed":[{"kind":"link","object":"veth1"},{"kind":"lease","object":"10.0.0.2","network":"front","where":"/leases"}]}`,
		"forced web: link veth1, lease /leases 10.0.0.2 (network \"front\")"},
	{"reload", `{}`, "reloaded"},
	{"reload", `{"restart":["state_dir","ui"]}`, "reloaded, restart needed to change state_dir, ui"},
	{"reload", `{"error":"line 3: no"}`, "reload refused: line 3: no"},
	{"configuration", `{"primary":"front","file":"/conf/10-front.conflist"}`, "network front (/conf/10-front.conflist) is active"},
	{"configuration", `{"notReady":"no file","problems":["a is broken","b too"]}`,
		"no network is active; not ready: no file; problems: a is broken; b too"},
	{"heal", `{"cause":"rules","change":"deletion of table ip allocnet by \"nft\" (PID 7)","restored":12,"seconds":0.1}`,
		`restored 12 allocations (deletion of table ip allocnet by "nft" (PID 7))`},
	{"heal", `{"cause":"address","restored":1,"seconds":0.1,"error":"no","backOff":8}`,
		"restored 1 allocations (address): no; something keeps removing it: the next repair in 8s at the earliest"},
	{"heal", `{"cause":"drift","restored":0,"unhealthy":"web","error":"no link","seconds":0.1}`, "unhealthy web: no link"},
	{"denied", `{"flows":[{"id":"web","direction":"egress","address":"10.1.0.2","peer":"10.1.0.3","peerID":"db","protocol":"tcp","port":5432,"rule":"no-sql","packets":1,"bytes":60},` +
		`{"id":"db","direction":"ingress","address":"10.1.0.3","peer":"192.0.2.1","protocol":"47","port":0,"rule":"default","network":"front","packets":3,"bytes":90},` +
		`{"id":"db","direction":"ingress","address":"10.1.0.3","peer":"192.0.2.1","protocol":"icmp","port":8,"packets":2,"bytes":168}],"omitted":2,"omittedPackets":7}`,
		"denied web egress tcp/5432 to 10.1.0.3 (db), 1 packet, by no-sql of allocation web; db ingress protocol 47 from 192.0.2.1, 3 packets, by default of network front; " +
			"db ingress icmp/8 from 192.0.2.1, 2 packets; and 2 more flows with 7 packets"},
	{"denied", `{"flows":[],"unlisted":[{"id":"web","direction":"egress","packets":1}]}`, "denied web egress, 1 packet of flows that are not listed"},
	{"lost", `{"count":3}`, "events were lost"},
	{"lost", `{"restarted":true}`, "events were lost"},
	{"news", `{"x":1}`, `news {"x":1}`},
}

// publishedOnce returns the published events after one of them, and ends.
func publishedOnce(_ context.Context, last uint64) <-chan wire.Event {
	events := make(chan wire.Event, len(publishedEvents))
	for i := int(last); i < len(publishedEvents); i++ {
		events <- wire.Event{ID: uint64(i + 1), Time: time.Unix(int64(i), 0).UTC(), Type: publishedEvents[i].kind, Data: json.RawMessage(publishedEvents[i].data)}
	}
	close(events)
	return events
}

// serveEvents serves the published events and stops.
func serveEvents(t *testing.T) (socket string) {
	socket, _ = apitest.Serve(t, api.Options{Events: publishedOnce})
	return socket
}

func TestEvents(t *testing.T) {
	socket := serveEvents(t)
	got := runWith("", "events", "--socket", socket)
	require.Equal(t, exitFailure, got.code)
	require.Regexp(t, "^error: follow events: allocnetd ended the connection: EOF\nhint: when allocnetd runs again.* --after", got.errOut)
	lines := strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")
	require.Len(t, lines, len(publishedEvents))
	for i, line := range lines {
		require.Regexp(t, fmt.Sprintf(`^\d\d:\d\d:\d\d\.000  %d  `, i+1)+regexp.QuoteMeta(publishedEvents[i].text)+"$", line)
	}
	require.Len(t, strings.Split(runWith("", "events", "--socket", socket, "--after", "9").out, "\n"), len(publishedEvents)-9+1)
	require.Contains(t, runWith("", "events", "--help").ok(t), "or with 0, only new events are printed")
}

// TestEventsAsJSON checks that --json prints each event as the daemon sends it.
func TestEventsAsJSON(t *testing.T) {
	got := runWith("", "events", "--json", "--socket", serveEvents(t))
	lines := strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")
	require.Len(t, lines, len(publishedEvents))
	for i, line := range lines {
		require.JSONEq(t, fmt.Sprintf(`{"id":%d,"time":"1970-01-01T00:00:%02dZ","type":%q,"data":%s}`, i+1, i, publishedEvents[i].kind, publishedEvents[i].data), line)
	}
}
