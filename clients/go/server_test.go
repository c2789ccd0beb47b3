package tidegate

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A deadline of clients whose server does not answer, and one for what is about answers, and not about time.
var (
	short = time.Duration(300*slowness()) * time.Millisecond
	long  = time.Duration(20*slowness()) * time.Second
)

func slowness() int {
	if number, err := strconv.Atoi(os.Getenv("SLOWNESS")); err == nil {
		return number
	}
	return 1
}

// server is a real one on a free port, which can be killed, stopped and started again.
type server struct {
	t         *testing.T
	folder    string
	variables []string
	process   *exec.Cmd
	url       string
	token     string
}

func tidegate() string {
	if path := os.Getenv("TIDEGATE"); path != "" {
		return path
	}
	return "tidegate"
}

func newServer(t *testing.T, prepare ...func(*server)) *server {
	t.Helper()
	s := &server{t: t, folder: t.TempDir()}
	for _, step := range prepare {
		step(s)
	}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *server) path(name string) string { return filepath.Join(s.folder, name) }

// start uses a free port, or again the one that it had.
func (s *server) start() {
	s.process = exec.Command(tidegate(), "serve", "--config", "../policy.toml")
	s.process.Env = append(os.Environ(), s.variables...)
	output, err := s.process.StdoutPipe()
	if err == nil {
		err = s.process.Start()
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	lines := bufio.NewScanner(output)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "policy: ") {
		if url := strings.TrimPrefix(lines.Text(), "listening on "); strings.HasPrefix(url, "http") {
			s.url = url
		}
	}
	s.variables = append(s.variables, "TIDEGATE_DOORS__HTTP="+strings.SplitN(s.url, "//", 2)[1])
}

func (s *server) kill() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// stopped has it take connections, by its backlog, and answer nothing.
func (s *server) stopped(scene func()) {
	_ = s.process.Process.Signal(syscall.SIGSTOP)
	defer func() { _ = s.process.Process.Signal(syscall.SIGCONT) }()
	for {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(s.process.Process.Pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") T ") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	scene()
}

func (s *server) client(options Options) *Client {
	s.t.Helper()
	client, err := New(s.url, options)
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

func withTokens(s *server) {
	file := s.path("tokens.toml")
	made, err := exec.Command(tidegate(), "token", "new", "--name", "test", "--scope", "check", "--file", file).Output()
	if err == nil {
		err = os.WriteFile(s.path("token"), made, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.token = strings.TrimSpace(string(made))
	s.variables = append(s.variables, "TIDEGATE_ACCESS__TOKENS="+file)
}

func withTLS(s *server) {
	words := "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
	files := []string{"-keyout", s.path("key.pem"), "-out", s.path("cert.pem")}
	if err := exec.Command("openssl", append(strings.Fields(words), files...)...).Run(); err != nil {
		s.t.Fatal(err)
	}
	s.variables = append(s.variables, "TIDEGATE_TLS__HTTP__CERT="+s.path("cert.pem"), "TIDEGATE_TLS__HTTP__KEY="+s.path("key.pem"))
}

// oddServer reads what comes on each connection and goes on as serve says: its address, and how many came.
func oddServer(t *testing.T, serve func(net.Conn)) (string, *int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	read := new(int32)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				if _, err := connection.Read(make([]byte, 1<<16)); err == nil {
					atomic.AddInt32(read, 1)
					serve(connection)
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String(), read
}

// withinDeadline is no hang: what a busy machine needs beyond the deadline is far below what a hang takes.
func withinDeadline(t *testing.T, scene func()) {
	t.Helper()
	begun := time.Now()
	scene()
	if took := time.Since(begun); took > short+time.Duration(slowness())*time.Second {
		t.Errorf("%v with a deadline of %v", took, short)
	}
}

// inParallel runs it so many times at once.
func inParallel(times int, work func()) {
	var group sync.WaitGroup
	for ; times > 0; times-- {
		group.Add(1)
		go func() {
			defer group.Done()
			work()
		}()
	}
	group.Wait()
}

// opened is how many connections the server has accepted.
func (s *server) opened() int {
	s.t.Helper()
	answer, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if count := strings.TrimPrefix(lines.Text(), "tidegate_http_connections_total "); count != lines.Text() {
			number, _ := strconv.Atoi(count)
			return number
		}
	}
	s.t.Fatal("no count of connections")
	return 0
}
