package outbox

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/outbox-suite/outbox/dialect"
)

// wakeups passes wake-ups on to relays.
type wakeups struct {
	mu     sync.Mutex
	next   int
	subs   map[int]func()
	remote *notifier // nil without Config.Notify
	// sending is true while a goroutine signals other processes; again asks it
	// for one more signal, so that a wake-up during a signal is not lost.
	sending, again bool
}

// notifier signals relays in other processes.
type notifier struct {
	waker dialect.Waker
	db    *sql.DB
}

// notify signals once. It is best effort: polling finds the messages too. The
// context is no caller's, since several wake-ups share one signal.
func (n *notifier) notify() {
	ctx, cancel := context.WithTimeout(context.Background(), wakeTimeout)
	defer cancel()
	_ = n.waker.Wake(ctx, n.db)
}

// wakeTimeout bounds one signal to other processes.
const wakeTimeout = 5 * time.Second

// Wake tells relays that messages were committed. It returns at once and never
// fails: a lost wake-up costs one poll interval, no message. Call it after the
// commit; relays of this process that were made from this Outbox look at once,
// relays of other processes if Config.Notify is set.
func (o *Outbox) Wake() {
	w := &o.wakeups
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, wake := range w.subs {
		wake()
	}
	if w.remote == nil {
		return
	}
	if w.sending {
		w.again = true
		return
	}
	w.sending = true
	go w.send()
}

func (w *wakeups) send() {
	for {
		w.remote.notify()
		w.mu.Lock()
		if !w.again {
			w.sending = false
			w.mu.Unlock()
			return
		}
		w.again = false
		w.mu.Unlock()
	}
}

// OnWake has wake called at every [Outbox.Wake] until stop is called. wake must
// not block.
func (o *Outbox) OnWake(wake func()) (stop func()) {
	w := &o.wakeups
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.subs == nil {
		w.subs = make(map[int]func())
	}
	id := w.next
	w.next++
	w.subs[id] = wake
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.subs, id)
	}
}
