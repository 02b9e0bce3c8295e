package conformance

// RaceEnabled tells the self-test that everything is many times slower.
const RaceEnabled = raceEnabled

// Small makes the loads of all scenarios as small as they get.
func Small() { small = true }
