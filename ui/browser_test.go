package ui_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/outbox-suite/outbox"
	"github.com/outbox-suite/outbox/ui"
)

var update = flag.Bool("update", false, "make the screenshots of docs/ui anew")

// browser is a headless Chromium of the machine, at a page.
type browser struct {
	*testing.T
	ctx  context.Context
	root string // with who is in it

	mu    sync.Mutex
	wrong []string // what the console says
	asked []string // the URLs that were asked for
}

// browse starts Chromium, which must say nothing on its console, nor ask anybody else.
func browse(t *testing.T, page *ui.Page) *browser {
	t.Helper()
	binary, err := exec.LookPath("chromium")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("OUTBOX_REQUIRE"), ","), "chromium") {
			t.Fatal("OUTBOX_REQUIRE asks for chromium, which is not installed")
		}
		t.Skip("not run in a browser: chromium is not installed")
	}
	server := httptest.NewServer(page)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("maria", token)
	allocator, stop := chromedp.NewExecAllocator(t.Context(), append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(binary), chromedp.WSURLReadTimeout(2*time.Minute), chromedp.NoSandbox, chromedp.WindowSize(1280, 900), chromedp.Flag("force-color-profile", "srgb"))...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	ctx, late := context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(late)
	b := &browser{T: t, ctx: ctx, root: u.String()}
	say := func(format string, args ...any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
	}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *log.EventEntryAdded:
			say("%s: %s", e.Entry.Level, e.Entry.Text)
		case *runtime.EventConsoleAPICalled:
			say("console: %v", e.Args)
		case *runtime.EventExceptionThrown:
			say("exception: %s", e.ExceptionDetails.Error())
		case *network.EventRequestWillBeSent:
			b.mu.Lock()
			b.asked = append(b.asked, e.Request.URL)
			b.mu.Unlock()
		}
	})
	b.do(network.Enable(), log.Enable(), runtime.Enable())
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, w := range b.wrong {
			t.Errorf("the browser says: %s", w)
		}
		for _, asked := range b.asked {
			if v, err := url.Parse(asked); err != nil || v.Host != u.Host {
				t.Errorf("the page asked for %s", asked)
			}
		}
	})
	return b
}

func (b *browser) do(actions ...chromedp.Action) {
	b.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

func (b *browser) open(path string) {
	b.Helper()
	b.do(chromedp.Navigate(b.root + path))
}

// js evaluates an expression.
func js[T any](b *browser, expression string) (v T) {
	b.Helper()
	b.do(chromedp.Evaluate(expression, &v))
	return v
}

// await waits until an expression is true of a page that is all there. While one page
// takes the place of another there is none to ask.
func (b *browser) await(expression string) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var is bool
		err := chromedp.Run(b.ctx, chromedp.Evaluate("document.readyState === 'complete' && ("+expression+")", &is))
		if err == nil && is {
			return
		}
	}
	b.Fatalf("waited in vain for %s, with the focus on %q of %s", expression,
		js[string](b, "document.activeElement.outerHTML.slice(0, 120)"), js[string](b, "document.body.innerText"))
}

// tabTo presses Tab until the focus is on what begins with text, and says so.
func (b *browser) tabTo(text string) {
	b.Helper()
	var passed []string
	for range 60 {
		b.do(chromedp.KeyEvent(kb.Tab))
		at := js[string](b, "(a => (a.innerText || a.name || a.tagName).trim())(document.activeElement)")
		if strings.HasPrefix(at, text) {
			if !js[bool](b, "getComputedStyle(document.activeElement).outlineStyle != 'none'") {
				b.Errorf("the focus on %q is not to be seen", text)
			}
			return
		}
		passed = append(passed, at)
	}
	b.Fatalf("Tab does not lead to %q, but to %q", text, passed)
}

// TestBrowserRequeue finds a dead message, requeues it with a reason and sees it in the
// audit, with the keyboard alone.
func TestBrowserRequeue(t *testing.T) {
	box := newBox(t, 4)
	put(t, box, outbox.Message{Topic: "orders", Key: "42", Type: "placed", Payload: []byte(`{"a":1}`)})
	drain(t, box, refuse("no <b>such</b> queue"))
	page := newPage(t, box, ui.Config{Token: token})
	b := browse(t, page)
	b.open("/")
	b.tabTo("Skip to content")
	b.tabTo("Parked")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await("document.title.startsWith('Parked')")
	b.tabTo("0") // the scrollable table of reasons or the id
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await("document.querySelector('h1').innerText.startsWith('Message')")
	if text := js[string](b, "document.body.innerText"); !strings.Contains(text, "no <b>such</b> queue") || strings.Contains(text, `"a"`) {
		t.Errorf("the message is shown as\n%s", text)
	}
	b.tabTo("Requeue")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await("document.querySelector('h1').innerText == 'Requeue 1 message?'")
	b.await("document.activeElement.id == 'why'") // autofocus comes with the first frame, after the load
	// Without a reason the browser does not send it.
	b.tabTo("Requeue 1 message")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await("document.activeElement.id == 'why'")
	b.do(chromedp.KeyEvent("the queue is there now"))
	b.tabTo("Requeue 1 message")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await("document.title.startsWith('Audit')")
	row := js[string](b, "document.querySelector('tbody tr').innerText")
	for _, want := range []string{"maria", "requeue", "1", "--id ", "the queue is there now", "done"} {
		if !strings.Contains(row, want) {
			t.Errorf("the audit's first row lacks %q: %s", want, row)
		}
	}
	drain(t, box, func(m relayMessage) error { return nil })
	if s, err := box.Stats(t.Context()); err != nil || s.Dead != 0 {
		t.Errorf("%d messages are dead, %v", s.Dead, err)
	}
}

// TestBrowserLive renews the overview by itself, until it is told not to.
func TestBrowserLive(t *testing.T) {
	box := newBox(t, 4)
	b := browse(t, newPage(t, box, ui.Config{Token: token}))
	b.open("/")
	b.do(chromedp.Evaluate("document.getElementById('all-lanes').open = true", nil))
	b.await("document.getElementById('dead-count').innerText == '0'")
	put(t, box, outbox.Message{Topic: "orders", Type: "placed"})
	drain(t, box, refuse("no"))
	b.await("document.getElementById('dead-count').innerText == '1'")
	if got := js[string](b, "document.getElementById('announce').innerText"); got != "Dead messages: 1" {
		t.Errorf("it announces %q", got)
	}
	if !js[bool](b, "document.getElementById('all-lanes').open") {
		t.Error("what was opened is shut")
	}
	b.tabTo("Auto-refresh")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await("document.getElementById('live-toggle').ariaPressed == 'false'")
}

// unnamed finds what a screen reader could not name or find, and text that is hard to read.
const unnamed = `(() => {
	const wrong = []
	const say = (what, e) => wrong.push(what + ': ' + e.outerHTML.slice(0, 120))
	if (document.documentElement.lang !== 'en') wrong.push('no language')
	if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1')
	for (const part of ['header', 'main', 'nav']) if (!document.querySelector(part)) wrong.push('no ' + part)
	let level = 0
	for (const h of document.querySelectorAll('h1,h2,h3,h4')) {
		if (Number(h.tagName[1]) > level + 1) say('a level of headings is left out', h)
		level = Number(h.tagName[1])
	}
	const ids = new Set()
	for (const e of document.querySelectorAll('[id]')) { if (ids.has(e.id)) say('id twice', e); ids.add(e.id) }
	for (const e of document.querySelectorAll('[aria-labelledby],[aria-describedby]'))
		for (const id of (e.getAttribute('aria-labelledby') || e.getAttribute('aria-describedby')).split(' ')) if (!ids.has(id)) say('refers to nothing', e)
	for (const e of document.querySelectorAll('th')) if (!e.scope) say('no scope', e)
	for (const e of document.querySelectorAll('img')) if (!e.hasAttribute('alt')) say('no alt', e)
	for (const e of document.querySelectorAll('svg')) if (e.getAttribute('role') !== 'img' || !e.ariaLabel) say('no label', e)
	for (const e of document.querySelectorAll('[tabindex]')) if (e.tabIndex > 0) say('an order of its own', e)
	for (const e of document.querySelectorAll('[style],[onclick]')) say('inline', e)
	for (const e of document.querySelectorAll('pre,.scroll')) if (e.tabIndex !== 0) say('scrolls without the keyboard', e)
	if (document.documentElement.scrollWidth > document.documentElement.clientWidth) wrong.push('wider than the window: ' + document.documentElement.scrollWidth)
	const rgb = c => c.match(/[\d.]+/g).map(Number)
	const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
	const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] !== 0) return c } return [255, 255, 255] }
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
	for (let n; (n = texts.nextNode());) {
		const e = n.parentElement
		if (!n.data.trim() || !e.checkVisibility() || e.closest('.skip,.sr')) continue
		const s = getComputedStyle(e)
		const [a, b] = [light(rgb(e.closest('svg') ? s.fill : s.color)), light(behind(e))].sort((x, y) => y - x)
		if ((a + 0.05) / (b + 0.05) < 4.5) say('contrast ' + ((a + 0.05) / (b + 0.05)).toFixed(2), e)
	}
	return wrong
})()`

// TestBrowserAccessible looks at every page, light and dark, wide and narrow.
func TestBrowserAccessible(t *testing.T) {
	box := newBox(t, 16)
	shop(t, box)
	page := newPage(t, box, ui.Config{Token: token})
	b := browse(t, page)
	b.open("/")
	first, err := box.Parked(t.Context(), outbox.Filter{States: []string{outbox.Dead}}, 0, 1)
	if err != nil || len(first) == 0 {
		t.Fatal(first, err)
	}
	operator, err := box.As("jo", "tried")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := operator.Requeue(t.Context(), outbox.Filter{Topic: "nothing"}, 0); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/", "/parked", "/parked?state=held", "/parked?topic=none", fmt.Sprintf("/parked/%d", first[0].Pos), fmt.Sprintf("/parked/%d?payload=1", first[0].Pos),
		"/replay", "/audit", "/act/requeue?state=dead", "/act/discard?topic=none",
	} {
		b.open(path)
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{1280, 360} {
				b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
					emulation.SetDeviceMetricsOverride(width, 900, 1, false))
				for _, w := range js[[]string](b, unnamed) {
					t.Errorf("%s, %s, %d wide: %s", path, scheme, width, w)
				}
			}
		}
		var nodes []*accessibility.Node
		b.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
			nodes, err = accessibility.GetFullAXTree().Do(ctx)
			return err
		}))
		for _, n := range nodes {
			if n.Ignored || n.Role == nil {
				continue
			}
			role := strings.Trim(string(n.Role.Value), `"`)
			if slices.Contains([]string{"button", "link", "textbox", "checkbox", "region", "navigation", "search", "form", "image"}, role) &&
				(n.Name == nil || strings.Trim(string(n.Name.Value), `" `) == "") {
				t.Errorf("%s: a %s has no name", path, role)
			}
		}
	}
}

// TestScreenshots makes the pictures of the documentation, with -update.
func TestScreenshots(t *testing.T) {
	if !*update {
		t.Skip("makes the pictures of the documentation with -update")
	}
	box := newBox(t, 16)
	shop(t, box)
	page := newPage(t, box, ui.Config{Token: token})
	for lane, owner := range map[int]string{0: "relay-6c4f9/1/k3v2", 1: "relay-6c4f9/1/k3v2", 4: "relay-6c4f9/1/k3v2", 9: "relay-6c4f9/1/k3v2", 2: "relay-b81d0/1/9xq7", 6: "relay-b81d0/1/9xq7", 11: "relay-b81d0/1/9xq7"} {
		if _, ok, err := box.Store().Claim(t.Context(), box.DB(), lane, owner, 14*time.Second); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	settled := int64(4_000_000)
	ui.FillSamples(page, 340, 10*time.Second, func(i int) (s outbox.Stats, _ int64, median, slow time.Duration) {
		x := float64(i)
		wave := 1 + 0.35*math.Sin(x/31) + 0.12*math.Sin(x/3.1) + 0.08*math.Cos(x*1.7)
		hill := func(at, width float64) float64 { return math.Exp(-(x - at) / width * (x - at) / width) }
		burst := hill(215, 9)
		settled += int64(10 * (184*wave - 120*burst + 160*hill(236, 8)))
		s.Ready = int64(30*wave + 2400*burst + 12*math.Sin(x/2))
		s.Retry, s.Held = 4, 9
		s.OldestReady = time.Duration((0.04 + 0.03*wave + 6.5*burst) * float64(time.Second))
		median = time.Duration((0.045 + 0.012*math.Sin(x/17) + 2.2*burst) * float64(time.Second))
		return s, settled, median, time.Duration(float64(median) * (2.4 + 0.4*math.Sin(x/5)))
	})
	b := browse(t, page)
	for _, s := range []struct {
		file, scheme, path string
		width, height      int64
		scale              float64
	}{
		{"ui-light.png", "light", "/", 1180, 1010, 1},
		{"ui-dark.png", "dark", "/parked?state=dead&state=retry&state=held", 1180, 880, 1},
		{"ui-narrow.png", "light", "/", 390, 844, 1.5},
	} {
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: s.scheme}}),
			emulation.SetDeviceMetricsOverride(s.width, s.height, s.scale, false))
		b.open(s.path)
		var png []byte
		b.do(chromedp.CaptureScreenshot(&png))
		if len(png) > 150_000 {
			t.Errorf("%s has %d bytes", s.file, len(png))
		}
		if err := os.WriteFile(filepath.Join("..", "docs", s.file), bytes.Clone(png), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
