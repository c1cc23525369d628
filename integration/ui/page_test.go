package ui

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/portmap"
)

// markup would become an element if the page took texts for markup.
const markup = `<b><script>throw 1</script></b>`

// few sets up three allocations on two networks, and a configuration that is not valid.
func (h *host) few() {
	h.Helper()
	h.setup(allocnet.Allocation{ID: "web", Networks: []string{"front"}, Scope: "shop", Args: map[string]string{"POD": markup},
		Ports: []portmap.Port{{Label: "http" + markup, Value: 8080, To: 80, Protocols: []string{"tcp"}}, {Value: 5353, To: 53}}})
	h.setup(allocnet.Allocation{ID: "db", Networks: []string{"front", "allocnet"}})
	h.setup(allocnet.Allocation{ID: "queue", Networks: []string{"allocnet"}, Ports: []portmap.Port{{Value: 4222, HostIP: "127.0.0.1", Protocols: []string{"tcp"}}}})
	h.write("conf/20-broken.conflist", `{"cniVersion": "1.0.0"`)
}

// item is the element of an allocation in the picture.
func item(network, id string) string {
	return fmt.Sprintf(`document.querySelector('#picture [data-item="%s/%s"]')`, network, id)
}

// TestContent: everything of three allocations is on the page, and what workloads name is
// text only.
func TestContent(t *testing.T) {
	h := newHost(t)
	h.few()
	b := browse(t, h.serve(), 1440, 900)
	b.shows("#tiles", "3 healthy")
	b.shows("#connection", "live")
	require.Empty(t, eval[string](b, `location.hash`), "the token is no longer in the address bar")
	picture := eval[string](b, `document.querySelector("#picture").textContent`)
	for _, part := range []string{"uplink0", "192.0.2.10/24", "via 192.0.2.1", "front", "10.88.0.0/16", "IPv4: 2 used, 65,531 free", "fd0a:110c:2e7::/64", "10.88.0.2 · healthy", "8080/tcp → :80", "5353/tcp+udp → :53", "127.0.0.1:4222/tcp → :4222"} {
		require.Contains(t, picture, part)
	}
	b.shows("#allocations-table", "8080/tcp → 10.88.0.2:80 (http"+markup+")")
	b.shows("#operations-list", "setup queue")
	b.shows("#operations-list", "reserve")
	b.shows("#leases-table", "10.88.0.2")
	b.shows("#configuration-list", "20-broken.conflist")
	b.shows("#doctor-list", "error: configuration-skipped")
	b.shows("#doctor-list", "Repair: correct ")
	b.shows("#latency-charts", "setup, native 3 operations")

	b.do(chromedp.Click(chromedp.CSS(`[data-item="row db"]`)))
	b.shows(`#details [aria-label="Routes"]`, "0.0.0.0/010.202.0.1allocnet")
	b.do(chromedp.Click(chromedp.CSS(`[data-item="row web"]`)))
	for _, part := range []string{"POD" + markup, "/run/netns/web", "shop", "10.88.0.2/16", "allocnet trace web", "History", "record"} {
		b.shows("#details", part)
	}
	require.Zero(t, eval[int](b, `document.querySelectorAll("b, body script").length`))
	require.True(t, strings.HasPrefix(eval[string](b, `document.title`), "allocnet on "))

	b.do(chromedp.Reload())
	b.shows("#tiles", "3 healthy") // the tab has kept the token
	b.do(chromedp.SendKeys(chromedp.CSS("#filter"), "5353"))
	b.awaits(`document.querySelectorAll("#allocations-table tbody tr").length === 1`)
	b.shows("#allocations-table", "1 of 3 allocations match the filter")
	b.awaits(item("front", "db") + " === null")
	b.awaits(item("front", "web") + " !== null")
}

// TestDaemon opens the page that the daemon serves itself.
func TestDaemon(t *testing.T) {
	h := newHost(t, `ui = "127.0.0.1:0"`)
	h.setup(allocnet.Allocation{ID: "web", Networks: []string{"front"}})
	url, err := os.ReadFile(h.path("s.url"))
	require.NoError(t, err)
	b := browse(t, strings.TrimSpace(string(url)), 1440, 900)
	b.shows("#connection", "live")
	b.shows("#tiles", "1 healthy")
	b.shows("#latency-charts", "setup, native 1 operation")
	b.shows("#doctor-list", "nothing found")
	h.teardown("web")
	b.shows("#operations-list", "teardown web")
}

// TestWithoutDaemon: allocnet ui reads the records itself.
func TestWithoutDaemon(t *testing.T) {
	h := newHost(t)
	h.few()
	b := browse(t, h.serve("--no-daemon"), 1440, 900)
	b.shows("#connection", "without the daemon")
	b.shows("#tiles", "3 healthy")
	b.shows("#operations-list", "setup queue")
	b.shows("#latency-charts", "only it measures durations")
	h.teardown("queue") // by the daemon, which the page does not use
	b.awaits(item("allocnet", "queue") + ` === null`)
	b.shows("#operations-list", "teardown queue")
}

// TestLive: set-ups, teardowns, failures and damage appear without a reload of the page.
func TestLive(t *testing.T) {
	h := newHost(t, `heal { enabled = false }`)
	b := browse(t, h.serve(), 1440, 900)
	b.shows("#connection", "live")
	b.shows("#allocations-table", "No allocation is set up")
	h.setup(allocnet.Allocation{ID: "one", Networks: []string{"front"}, Ports: []portmap.Port{{Value: 8080, Protocols: []string{"tcp"}}}})
	b.shows("#picture", "one")
	b.shows("#operations-list", "setup one")
	b.shows("#announcer", "setup one: ok")
	eval[bool](b, `document.dispatchEvent(new Event("visibilitychange"))`) // the page reads the history again
	b.awaits(`performance.getEntriesByType("resource").filter((e) => e.name.includes("/api/history?limit")).length > 1`)
	b.shows("#allocations-table", "healthy")
	b.do(chromedp.Click(chromedp.CSS(`[data-item="row one"]`)))
	b.shows("#details", "10.88.0.2/16")

	_, err := h.client.Setup(t.Context(), allocnet.Allocation{ID: "two", OwnNetns: true, Networks: []string{"front"}, Ports: []portmap.Port{{Value: 8080, Protocols: []string{"tcp"}}}})
	require.ErrorIs(t, err, portmap.ErrConflict)
	b.shows("#operations-list .failed", "setup two")
	b.shows("#operations-list .failed .error", "8080")

	flush, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
	require.NoError(t, err, string(flush))
	h.setup(allocnet.Allocation{ID: "three", Networks: []string{"front"}}) // the page checks when something has changed
	b.shows("#operations-list", "setup three")
	require.Equal(t, 1, eval[int](b, `[...document.querySelectorAll("#operations-list li")].filter((e) => e.textContent.startsWith("setup one")).length`))
	b.shows("#tiles", "1 unhealthy")
	b.shows("#allocations-table", "unhealthy")
	b.awaits(item("front", "one") + `.getAttribute("aria-label").includes("one, unhealthy")`)
	b.shows("#details .error", "nftables")
	_, err = h.client.Repair(t.Context())
	require.NoError(t, err)
	h.teardown("three")
	b.shows("#tiles", "1 healthy")

	h.teardown("one")
	b.shows("#details", "It has been torn down")
	b.shows("#details .history", "teardown")
	b.shows("#allocations-table", "No allocation is set up")
	b.awaits(item("front", "one") + ` === null`)
}

// TestRestart: the page says that the daemon does not answer, shows what it knew, and
// goes on with the next daemon.
func TestRestart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	h := newHost(t, `metrics {`, `listen = "`+taken.Addr().String()+`"`, `}`)
	h.setup(allocnet.Allocation{ID: "one", Networks: []string{"front"}})
	b := browse(t, h.serve(), 1440, 900)
	b.shows("#connection", "live")
	b.shows("#tiles", "1 healthy")
	b.shows("#tiles", "version")
	b.shows("#configuration-list", "address already in use")
	b.shows("#doctor-list", "not-served")
	require.True(t, eval[bool](b, `document.querySelector("#fault").hidden`))
	h.stop()
	b.shows("#connection", "not live since")
	eval[bool](b, `document.dispatchEvent(new Event("visibilitychange"))`) // the page reads again
	b.shows("#tiles", "no answer")
	b.shows("#tiles", "1 not checked")
	b.shows("#fault", "allocnetd is not running")
	b.shows("#fault", "The page shows the state of ")
	b.shows("#picture", "one")
	b.shoot("lost")
	h.start()
	b.awaits(`document.querySelector("#connection").textContent === "live" && document.querySelector("#fault").hidden`)
	h.setup(allocnet.Allocation{ID: "two", Networks: []string{"front"}})
	b.shows("#picture", "two")
	b.expectedFaults("Failed to load resource: the server responded with a status of 502")
}

// TestFaults: a fault of the page is not taken for one of the program that serves it.
func TestFaults(t *testing.T) {
	h := newHost(t, `ui = "127.0.0.1:0"`)
	url, err := os.ReadFile(h.path("s.url"))
	require.NoError(t, err)
	b := browse(t, strings.TrimSpace(string(url)), 1440, 900)
	b.shows("#connection", "live")
	eval[bool](b, `(import("./server.js").then((server) => server.fault("test", new TypeError("x is not a function"))), true)`)
	b.shows("#fault", "This page has a fault: x is not a function")
	eval[bool](b, `(import("./server.js").then((server) => server.fault("test")), true)`)
	b.awaits(`document.querySelector("#fault").hidden`)
	h.stop()
	b.shows("#fault", "The program that serves this page does not answer.")
	b.expectedFaults("Failed to load resource: net::ERR_")
	h.start()
}

// overlapping lists texts of the charts that lie on each other, or outside of their chart.
const overlapping = `[...document.querySelectorAll("#latency figure")].flatMap((figure) => {
  const all = figure.querySelector("svg").getBoundingClientRect(), box = (e) => e.getBoundingClientRect();
  return [...figure.querySelectorAll("text")].flatMap((one, i, texts) => [
    ...texts.slice(i + 1).filter((other) => box(one).left < box(other).right && box(other).left < box(one).right
      && box(one).top < box(other).bottom && box(other).top < box(one).bottom).map((other) => one.textContent + " on " + other.textContent),
    ...(box(one).left < all.left || box(one).right > all.right ? [one.textContent + " outside"] : []),
  ]);
})`

// TestLostRequests: the page loads again when it does not receive one of its files, and reads again what
// it could not read.
func TestLostRequests(t *testing.T) {
	h := newHost(t)
	h.setup(allocnet.Allocation{ID: "web", Networks: []string{"front"}})
	b := browse(t, h.serve(), 1440, 900)
	b.shows("#doctor-list", "nothing found")
	for _, path := range []string{"/page.css", "/server.js", "/page.js", "/api/doctor", "/api/state"} {
		b.loses(path)
		b.do(chromedp.Reload())
		b.shows("#tiles", "1 healthy")
		b.shows("#connection", "live")
		b.shows("#doctor-list", "nothing found")
		b.awaits(`document.querySelector("#fault")?.hidden === true && getComputedStyle(document.querySelector(".skip")).position === "absolute"`)
		b.expectedFaults("Failed to load resource: net::ERR_CONNECTION_ABORTED " + b.origin + path)
	}
}

// TestCharts has durations of all magnitudes.
func TestCharts(t *testing.T) {
	b := browse(t, newHost(t).serve(), 1440, 900)
	b.shows("#latency-charts", "repair 1 operation")
	eval[bool](b, `(import("./sections.js").then((sections) => {
		const limits = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, null];
		sections.latency({ steps: [], operations: [1, 3, 5, 8, 12, 17].map((n) => ({
			operation: "setup", part: "native", count: n * 8888, sum: n, buckets: limits.slice(-n).map((limit) => ({ limit, count: 8888 * n })) })) }, true);
	}), true)`)
	b.awaits(`document.querySelectorAll("#latency figure").length === 6`)
	for _, width := range []int64{1440, 900, 400} {
		b.do(chromedp.EmulateViewport(width, 800))
		b.awaits(fmt.Sprintf("innerWidth === %d", width))
		require.Empty(t, eval[[]string](b, overlapping), "at %d", width)
	}
	require.Contains(t, eval[string](b, `document.querySelector("#latency").textContent`), "≤ 100 µs: 151,096 operations", "what does not fit")
	b.shoot("charts-narrow")
}

// TestKeyboard reaches the details of an allocation, and returns, without a pointer.
func TestKeyboard(t *testing.T) {
	h := newHost(t)
	h.few()
	b := browse(t, h.serve(), 1440, 900)
	b.shows("#tiles", "3 healthy")
	press := func(keys ...string) {
		t.Helper()
		for _, key := range keys {
			b.press(key)
		}
	}
	focused := func(attribute, value string) {
		t.Helper()
		b.awaits(fmt.Sprintf(`(document.activeElement?.getAttribute(%q) ?? "") === %q`, attribute, value))
	}
	press("/")
	focused("id", "filter")
	for range 20 { // the tiles and the legend come before the picture
		press(kb.Tab)
		if eval[bool](b, `document.activeElement.classList.contains("item")`) {
			break
		}
	}
	focused("data-item", "front/db")
	press(kb.ArrowRight)
	focused("data-item", "front/web")
	require.NotEqual(t, "none", eval[string](b, `getComputedStyle(document.activeElement.querySelector(".card")).stroke`))
	press(kb.Enter)
	focused("id", "details-title")
	b.shows("#details-title", "web")
	press(kb.Tab)
	focused("aria-label", "Close the details")
	press(kb.Escape)
	focused("data-item", "front/web")
	b.awaits(`document.querySelector("#details").hidden`)
	press(kb.End)
	focused("data-item", "front/web")
	press(kb.Home)
	focused("data-item", "front/db")
}

// TestAccessibility looks for the roles and names that assistive programs use, and for
// enough contrast.
func TestAccessibility(t *testing.T) {
	h := newHost(t)
	h.few()
	b := browse(t, h.serve(), 1440, 900)
	b.shows("#tiles", "3 healthy")
	b.shows("#operations-list", "setup queue")
	b.shows("#doctor-list", "Repair")
	b.shows("#latency-charts", "setup, native")
	b.do(chromedp.Click(chromedp.CSS(`[data-item="row db"]`)))
	b.shows("#details", "History")
	nodes := b.tree()
	for _, want := range []node{
		{"main", ""}, {"banner", ""}, {"search", ""}, {"navigation", "Sections"}, {"complementary", "Details and operations"},
		{"heading", "Picture"}, {"heading", "Operations"}, {"heading", "db"}, {"searchbox", "Filter"},
		{"group", "Uplink uplink0: 192.0.2.10/24, via 192.0.2.1"}, {"group", "Allocations of network front"},
		{"columnheader", "Published ports"}, {"rowheader", "queue"}, {"button", "Close the details"}, {"button", "Examine again"},
		{"log", "Operations as they end"}, {"list", "Operations"},
	} {
		require.True(t, slices.ContainsFunc(nodes, func(n node) bool { return n.role == want.role && (want.name == "" || n.name == want.name) }), "%v in %v", want, nodes)
	}
	named := func(role, part string) bool {
		return slices.ContainsFunc(nodes, func(n node) bool { return n.role == role && strings.Contains(n.name, part) })
	}
	require.True(t, named("button", "queue, healthy, 10.202.0."), "an item of the picture")
	require.True(t, named("button", "port 127.0.0.1:4222/tcp to "))
	require.True(t, named("image", "setup, native, 3 operations: half ≤"), "%v", nodes)
	for _, n := range nodes {
		if slices.Contains([]string{"button", "link", "searchbox", "image", "table", "region", "heading"}, n.role) {
			require.NotEmpty(t, n.name, "a %s has no name", n.role)
		}
	}
	for _, dark := range []bool{false, true} {
		b.dark(dark)
		require.Empty(t, eval[[]string](b, lowContrast))
		b.shoot(fmt.Sprintf("few-dark-%v", dark))
	}
	b.do(chromedp.EmulateViewport(400, 800))
	b.awaits(`document.querySelector("#picture svg").getAttribute("width") < 400`) // drawn again
	require.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth`), 400, "no part of the page is wider than the screen")
	require.Greater(t, eval[float64](b, item("front", "web")+`.getBoundingClientRect().width`), 200.)
	require.Less(t, eval[float64](b, `document.querySelector('[data-item="row queue"]').getBoundingClientRect().height`), 40., "an ID is on one line")
	require.Less(t, eval[float64](b, `document.querySelector(".top").getBoundingClientRect().height`), 100., "it covers little of the screen")
	require.Less(t, eval[float64](b, `document.querySelector("#legend").getBoundingClientRect().bottom`)+4, eval[float64](b, `document.querySelector("#picture").getBoundingClientRect().top`))
	require.Empty(t, eval[[]string](b, `[...document.querySelectorAll("#leases-table tr > *")].filter((cell) => cell.getBoundingClientRect().right > 400).map((cell) => cell.textContent)`), "all of a lease is visible")
	require.Empty(t, eval[[]string](b, lowContrast))
	b.shoot("few-narrow")
}

// lowContrast lists visible texts whose contrast to their background is below 4.5.
const lowContrast = `(() => {
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (e) => {
    for (; e; e = e.parentElement) {
      const shape = e instanceof SVGGElement && e.querySelector(":scope > rect:not(.column)");
      const color = shape ? getComputedStyle(shape).fill : getComputedStyle(e).backgroundColor;
      const parts = color.startsWith("rgb") ? channels(color) : [0, 0, 0, 0];
      if (parts.length < 4 || parts[3] === 1) return parts;
    }
    return [255, 255, 255];
  };
  const low = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.closest("title, .unseen, noscript")) continue;
    const color = channels(e instanceof SVGElement ? getComputedStyle(e).fill : getComputedStyle(e).color);
    const [high, deep] = [light(color), light(back(e))].sort((a, b) => b - a);
    if ((high + 0.05) / (deep + 0.05) < 4.5) low.push(walker.currentNode.data + ": " + ((high + 0.05) / (deep + 0.05)).toFixed(2));
  }
  return low;
})()`

// TestMany has 1000 allocations: the page shows all of them, and stays quick.
func TestMany(t *testing.T) {
	h := newHost(t)
	h.setup(allocnet.Allocation{ID: "web", Networks: []string{"front"}, Ports: []portmap.Port{{Label: "http", Value: 8080, To: 80, Protocols: []string{"tcp"}}}})
	h.setupMany(999)
	b := browse(t, h.serve(), 1440, 900)
	b.shows("#tiles", "1,000 healthy")
	b.shows("#picture", "999 allocations")
	require.Equal(t, 999, eval[int](b, `document.querySelectorAll("#picture .cell").length`))
	require.Equal(t, 25, eval[int](b, `document.querySelectorAll("#allocations-table tbody tr").length`))
	require.Equal(t, 2, eval[int](b, `document.querySelectorAll('#picture .item[tabindex="0"]').length`), "one stop of the Tab key per network")
	b.dark(false)
	b.shoot("many-light")

	b.do(chromedp.SendKeys(chromedp.CSS("#filter"), "task-0770"))
	b.shows("#picture", "20770/tcp → :80")
	b.shows("#allocations-table", "1 of 1,000 allocations match the filter")
	b.press(kb.Escape)
	b.awaits(`document.querySelectorAll("#picture .cell").length === 999`)
	b.awaits(`document.querySelector("#doctor-list").textContent !== ""`) // while links come and go: nothing is left unchecked
	require.NotContains(t, eval[string](b, `document.querySelector("#doctor-list").textContent`), "not-checked")
	h.teardown("task-0500")
	b.awaits(item("allocnet", "task-0500") + ` === null`)
	b.shows("#tiles", "999 healthy")
	b.dark(true)
	b.do(chromedp.EmulateViewport(900, 800))
	b.shoot("many-dark")
	b.do(chromedp.EmulateViewport(400, 800))
	b.shoot("many-narrow")
}
