// The program oxia loads a cluster of Oxia with puts of random values, a fixed number of them in flight, and prints one JSON line. A put
// that fails counts as an error; its worker tries again after a pause.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oxia-db/oxia/oxia"
)

const (
	// How many workers write the keys before the load.
	fillers = 256
	// How often one key is tried before the load.
	fillTries     = 100
	connectWithin = time.Minute
	afterError    = 10 * time.Millisecond
	slot          = 100 * time.Millisecond
)

var (
	address = flag.String("address", "", "public address of a server")
	keys    = flag.Int("keys", 16000, "number of keys")
	payload = flag.Int("payload", 50, "bytes of a value")
	depth   = flag.Int("depth", 64, "puts in flight")
	clients = flag.Int("clients", 1, "clients that share them, each with batches of its own")
	linger  = flag.Duration("linger", time.Millisecond, "how long a client waits for more puts before it sends a batch")
	seconds = flag.Duration("seconds", 4*time.Second, "how long to measure")
	warmup  = flag.Duration("warmup", time.Second, "how long to run the load before measuring")
	fill    = flag.Bool("fill", false, "write all keys first")
	// A put that a dead leader has taken must not occupy its worker for the rest of the run.
	timeout = flag.Duration("timeout", 5*time.Second, "time limit of a put")
)

// What one worker saw.
type seen struct {
	latencies []time.Duration
	ends      []time.Duration
	failures  []time.Duration
	lastError error
}

func key(number int) string { return fmt.Sprintf("k%06d", number) }

func value(random *rand.Rand) []byte {
	bytes := make([]byte, *payload)
	random.Read(bytes)
	return bytes
}

func die(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// A server that has just started does not know the shards yet.
func connect() oxia.AsyncClient {
	for until := time.Now().Add(connectWithin); ; time.Sleep(afterError) {
		client, err := oxia.NewAsyncClient(*address, oxia.WithBatchLinger(*linger), oxia.WithRequestTimeout(*timeout))
		if err == nil {
			return client
		}
		if time.Now().After(until) {
			die(err)
		}
	}
}

func put(client oxia.AsyncClient, number int, random *rand.Rand) error {
	return (<-client.Put(key(number), value(random))).Err
}

func writeAll(connected []oxia.AsyncClient) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for worker := range fillers {
		workers.Go(func() {
			random := rand.New(rand.NewSource(int64(worker)))
			for number := int(next.Add(1)) - 1; number < *keys; number = int(next.Add(1)) - 1 {
				err := put(connected[worker%len(connected)], number, random)
				for try := 1; err != nil; try++ {
					if try == fillTries {
						die(err)
					}
					time.Sleep(afterError)
					err = put(connected[worker%len(connected)], number, random)
				}
			}
		})
	}
	workers.Wait()
}

func load(connected []oxia.AsyncClient, from time.Time) []seen {
	all := make([]seen, *depth)
	var workers sync.WaitGroup
	for worker := range *depth {
		workers.Go(func() {
			client, mine := connected[worker%len(connected)], &all[worker]
			random := rand.New(rand.NewSource(from.UnixNano() + int64(worker)))
			for sent := time.Now(); sent.Before(from.Add(*seconds)); sent = time.Now() {
				err := put(client, random.Intn(*keys), random)
				end := time.Since(from)
				if err != nil {
					mine.lastError = err
				}
				switch {
				case end < 0:
				case err != nil:
					mine.failures = append(mine.failures, end)
				default:
					mine.latencies, mine.ends = append(mine.latencies, end-sent.Sub(from)), append(mine.ends, end)
				}
				if err != nil {
					time.Sleep(afterError)
				}
			}
		})
	}
	workers.Wait()
	return all
}

func count(line []int, at time.Duration) []int {
	for len(line) <= int(at/slot) {
		line = append(line, 0)
	}
	line[at/slot]++
	return line
}

func report(all []seen, from time.Time) map[string]any {
	var latencies []time.Duration
	var answers, errors []int
	var last time.Duration
	row, failed := map[string]any{}, 0
	for _, one := range all {
		latencies = append(latencies, one.latencies...)
		failed += len(one.failures)
		for _, at := range one.ends {
			answers, last = count(answers, at), max(last, at)
		}
		for _, at := range one.failures {
			errors, last = count(errors, at), max(last, at)
		}
		if one.lastError != nil {
			row["last_error"] = one.lastError.Error()
		}
	}
	sort.Slice(latencies, func(a, b int) bool { return latencies[a] < latencies[b] })
	ms := func(quantile float64) float64 {
		if len(latencies) == 0 {
			return 0
		}
		return float64(latencies[min(len(latencies)-1, int(quantile*float64(len(latencies))))].Microseconds()) / 1e3
	}
	row["ops_s"] = float64(len(latencies)) / max(last.Seconds(), 1e-9)
	row["p50_ms"], row["p99_ms"], row["p999_ms"], row["max_ms"] = ms(.5), ms(.99), ms(.999), ms(1)
	row["ops"], row["errors"], row["seconds"] = len(latencies), failed, last.Seconds()
	row["keys"], row["value_bytes"], row["depth"], row["clients"] = *keys, *payload, *depth, *clients
	row["linger_ms"] = float64(linger.Microseconds()) / 1e3
	row["per_100ms"], row["errors_per_100ms"], row["started_unix_ms"] = answers, errors, from.UnixMilli()
	return row
}

func main() {
	flag.Parse()
	connected := make([]oxia.AsyncClient, *clients)
	for number := range connected {
		connected[number] = connect()
	}
	if *fill {
		writeAll(connected)
	}
	from := time.Now().Add(*warmup)
	line, err := json.Marshal(report(load(connected, from), from))
	if err != nil {
		die(err)
	}
	fmt.Println(string(line))
}
