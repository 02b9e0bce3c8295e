package publishtest

var duplicateScenarios = []Scenario{
	{
		Name:    "Duplicate/IsSuccess",
		Promise: "a message that is published again, because an answer was lost, is accepted again",
		run:     duplicateIsSuccess,
	},
	{
		Name:    "Duplicate/ArrivesOnce",
		Promise: "a message that is published twice arrives once where the broker removes duplicates, across its restart too",
		Needs:   []Need{Duplicates},
		run:     duplicateArrivesOnce,
	},
	{
		Name:    "Duplicate/ReplayGetsThrough",
		Promise: "a message that an operator replays arrives again, under the same id and marked as a replay",
		run:     replayGetsThrough,
	},
}

func duplicateIsSuccess(t *trial) {
	p, topic := t.publisher(), t.topic()
	m := t.message(topic, "key")
	m.Headers = map[string]string{"a": "b"}
	t.accept(p, m)
	m.Attempt++
	t.accept(p, m)
	m.Attempt++
	m.Epoch++ // after another relay took over
	t.accept(t.publisher(), m)
	t.awaitAll(topic, m)
}

func duplicateArrivesOnce(t *trial) {
	p, topic := t.publisher(), t.topic()
	ms := t.messages(topic, 10)
	t.accept(p, ms...)
	for i := range ms {
		ms[i].Attempt++
	}
	t.accept(p, ms...)
	if t.target.lacks([]Need{Crash}) == "" {
		t.kill()()
		t.deliver(p, ms...)
	}
	t.awaitAll(topic, ms...)
	got := t.settled(topic)
	for i := range ms {
		if n := count(got, ms[i].ID); n != 1 {
			t.errorf("message %d was published several times and arrived %d times", i+1, n)
		}
	}
}

func replayGetsThrough(t *trial) {
	p, topic := t.publisher(), t.topic()
	m := t.message(topic, "key")
	t.accept(p, m)
	for replay := 1; replay <= 2; replay++ {
		m.Replay, m.Attempt = replay, 1
		t.accept(p, m)
		m.Attempt++
		t.accept(p, m)
	}
	t.await(topic, "a message and its two replays", func(got []Received) bool {
		marks := make(map[int]bool)
		for i := range got {
			if got[i].ID == m.ID {
				marks[got[i].Replay] = true
			}
		}
		return marks[0] && marks[1] && marks[2]
	})
	if n := count(t.settled(topic), m.ID); t.target.Deduplicates && n != 3 {
		t.errorf("a message and its two replays, each published twice, arrived %d times instead of 3", n)
	}
}
