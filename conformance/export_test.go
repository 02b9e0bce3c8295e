package conformance

// RaceEnabled tells the self-test that everything is many times slower.
const RaceEnabled = raceEnabled
