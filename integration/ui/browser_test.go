package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shotsVariable is the environment variable with the directory for screenshots; they are
// not stored without it.
const shotsVariable = "ALLOCNET_UI_SCREENSHOTS"

// browser is a tab of a new Chromium.
type browser struct {
	*testing.T
	ctx    context.Context
	origin string

	mu       sync.Mutex
	faults   []string // errors in the console, and requests to others than the origin
	requests int
}

// browse starts Chromium and opens a URL. At the end, the console must have no error, and
// the page must have sent requests to its own origin only.
func browse(t *testing.T, address string, width, height int64) *browser {
	t.Helper()
	flags := []chromedp.ExecAllocatorOption{chromedp.ExecPath("chromium"), chromedp.UserDataDir(t.TempDir()), chromedp.NoFirstRun, chromedp.NoSandbox, chromedp.Headless, chromedp.DisableGPU}
	for _, name := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync"} {
		flags = append(flags, chromedp.Flag(name, true))
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), flags...)
	t.Cleanup(cancel)
	ctx, _ = chromedp.NewContext(ctx)
	page, err := url.Parse(address)
	require.NoError(t, err)
	b := &browser{T: t, origin: page.Scheme + "://" + page.Host}
	b.ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	require.NoError(t, chromedp.Listen(ctx, b.observe))
	t.Cleanup(func() {
		require.NoError(t, chromedp.Cancel(ctx)) // waits for the end of the process
		cancel()
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Empty(t, b.faults)
		require.NotZero(t, b.requests)
	})
	command(b, network.Enable, network.EnableParams{})
	command(b, log.Enable, cdp.Empty{})
	command(b, runtime.Enable, cdp.Empty{})
	b.do(chromedp.EmulateViewport(width, height))
	b.do(chromedp.Navigate(address))
	return b
}

// command sends a command to the tab, and returns its result.
func command[P, R any](b *browser, c cdp.Command[P, R], params P) R {
	b.Helper()
	result, err := chromedp.Call(b.ctx, c, params)
	require.NoError(b, err)
	return result
}

// observe notes faults.
func (b *browser) observe(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, e.ExceptionDetails.Text+" "+e.ExceptionDetails.Exception.Description)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.faults = append(b.faults, "console: "+string(e.Args[0].Value))
		}
	case *log.EventEntryAdded:
		if strings.Contains(e.Entry.Text, "net::ERR_NETWORK_CHANGED") {
			break // Chromium gives up requests when an interface or address of the host changes: the page repeats them
		}
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.faults = append(b.faults, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		b.requests++
		if !strings.HasPrefix(e.Request.URL, b.origin+"/") {
			b.faults = append(b.faults, "request to "+e.Request.URL)
		}
	case *fetch.EventRequestPaused:
		go b.end(e.RequestID) // the events go on only when this function returns
	}
}

// loses makes the next request for a path fail.
func (b *browser) loses(path string) {
	b.Helper()
	command(b, fetch.Enable, fetch.EnableParams{Patterns: []*fetch.RequestPattern{{URLPattern: b.origin + path}}})
}

// end makes a request fail as if the connection had ended, and lets those after it pass.
func (b *browser) end(id fetch.RequestID) {
	_, failed := chromedp.Call(b.ctx, fetch.FailRequest, fetch.FailRequestParams{RequestID: id, ErrorReason: network.ErrorReasonConnectionAborted})
	_, kept := chromedp.Call(b.ctx, fetch.Disable, cdp.Empty{})
	assert.NoError(b, errors.Join(failed, kept))
}

// expectedFaults removes the faults that begin with a text, of which there must be some.
func (b *browser) expectedFaults(text string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(b.faults), func(fault string) bool { return strings.HasPrefix(fault, text) })
	require.NotEqual(b, others, b.faults)
	b.faults = others
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	require.NoError(b, chromedp.Do(b.ctx, actions...))
}

// eval returns the value of an expression in the page.
func eval[T any](b *browser, expression string) T {
	b.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoError(b, err, expression)
	return value
}

// awaits waits until an expression in the page is true.
func (b *browser) awaits(expression string) {
	b.Helper()
	deadline := time.Now().Add(time.Minute)
	for !eval[bool](b, expression) {
		if time.Now().After(deadline) {
			b.shoot("failed")
			require.Fail(b, "the page never has "+expression, eval[string](b, `document.body.innerText`))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// shows waits until the element that a selector finds has a text.
func (b *browser) shows(selector, text string) {
	b.Helper()
	b.awaits(`(document.querySelector(` + quoted(selector) + `)?.textContent ?? "").includes(` + quoted(text) + `)`)
}

func quoted(text string) string {
	return "\"" + strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n").Replace(text) + "\""
}

// dark makes the browser prefer a dark or a light page.
func (b *browser) dark(dark bool) {
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.Helper()
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
}

// shoot stores screenshots of the whole page and of its visible part if a directory is named.
func (b *browser) shoot(name string) {
	b.Helper()
	dir := os.Getenv(shotsVariable)
	if dir == "" {
		return
	}
	for suffix, shot := range map[string]chromedp.Action[[]byte]{"": chromedp.FullScreenshot(100), "-top": chromedp.CaptureScreenshot()} {
		png, err := chromedp.Run(b.ctx, shot)
		require.NoError(b, err)
		require.NoError(b, os.WriteFile(filepath.Join(dir, name+suffix+".png"), png, 0o644))
	}
}

// node is a node of the accessibility tree.
type node struct{ role, name string }

// tree returns the accessibility tree without ignored nodes.
func (b *browser) tree() (nodes []node) {
	b.Helper()
	for _, n := range command(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if !n.Ignored {
			nodes = append(nodes, node{text(n.Role), text(n.Name)})
		}
	}
	return nodes
}

func text(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	var decoded any
	if err := json.Unmarshal([]byte(v.Value), &decoded); err != nil {
		return err.Error()
	}
	return fmt.Sprint(decoded)
}

// press presses and releases a key, as a keyboard does: what the page prevents does not
// type.
func (b *browser) press(key string) {
	b.Helper()
	for _, e := range kb.Encode([]rune(key)[0]) {
		switch e.Type {
		case input.DispatchKeyEventTypeChar:
			continue
		case input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeRawKeyDown:
			if len(key) == 1 && key > " " {
				e.Type, e.Text = input.DispatchKeyEventTypeKeyDown, key
			}
		}
		command(b, input.DispatchKeyEvent, *e)
	}
}
