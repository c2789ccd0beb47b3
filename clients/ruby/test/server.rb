# frozen_string_literal: true

require "minitest/autorun"
require "minitest/mock"
require "open3"
require "socket"
require "tmpdir"
require "tidegate"
require "tidegate/pause"
require "tidegate/rack"

TIDEGATE = ENV.fetch("TIDEGATE", "tidegate")
SLOWNESS = ENV.fetch("SLOWNESS", "1").to_f
# Of clients whose server does not answer.
DEADLINE = 0.3 * SLOWNESS
# For what is about answers, and not about time.
LONG = 20 * SLOWNESS

# A real one on a free port, which can be killed, stopped and started again.
class Server
  POLICY = File.expand_path("../../policy.toml", __dir__)

  attr_reader :url, :token

  def initialize(tokens: false, tls: false)
    @folder = Dir.mktmpdir
    @variables = {}
    new_token if tokens
    certify if tls
    start
  end

  def path(name)
    File.join(@folder, name)
  end

  # On a free port, or again on the one that it had.
  def start
    @output, input = IO.pipe
    @process = spawn(@variables, TIDEGATE, "serve", "--config", POLICY, out: input, err: File::NULL)
    input.close
    @output.each_line do |line|
      @url = line.split.last if line.start_with?("listening on http")
      break if line.start_with?("policy: ")
    end
    @variables["TIDEGATE_DOORS__HTTP"] = @url.split("//").last
  end

  def kill
    Process.kill(:KILL, @process)
    Process.wait(@process)
    @output.close
  end

  # It takes connections, by its backlog, and answers nothing.
  def stopped
    Process.kill(:STOP, @process)
    sleep(0.001) until File.read("/proc/#{@process}/stat").include?(") T ")
    yield
  ensure
    Process.kill(:CONT, @process)
  end

  def close
    kill
    FileUtils.rm_r(@folder)
  end

  private

  def new_token
    file = @variables["TIDEGATE_ACCESS__TOKENS"] = path("tokens.toml")
    @token, = Open3.capture3(TIDEGATE, *%w[token new --name test --scope check --file], file)
    File.write(path("token"), @token)
  end

  def certify
    key, cert = path("key.pem"), path("cert.pem")
    words = %w[req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test
               -addext subjectAltName=IP:127.0.0.1]
    system("openssl", *words, "-keyout", key, "-out", cert, err: File::NULL, exception: true)
    @variables.update("TIDEGATE_TLS__HTTP__KEY" => key, "TIDEGATE_TLS__HTTP__CERT" => cert)
  end
end

# Head and body come in two writes: a request is read to its end.
def read_request(connection)
  text = connection.readpartial(1 << 16)
  text << connection.readpartial(1 << 16) until text.include?("\r\n\r\n")
  head, body = text.split("\r\n\r\n", 2)
  missing = head[/^content-length: (\d+)/i, 1].to_i - body.bytesize
  missing.positive? ? text << connection.read(missing) : text
end

# Reads what comes on each connection and goes on as the block says; gives its address, and what it read.
def odd_server(serve)
  listener = TCPServer.new("127.0.0.1", 0)
  read = []
  accepting = Thread.new do
    loop do
      connection = listener.accept
      read << read_request(connection)
      serve.call(connection)
    rescue SystemCallError, EOFError
      nil
    ensure
      connection&.close
    end
  end
  yield "http://127.0.0.1:#{listener.addr[1]}", read
ensure
  accepting.kill
  listener.close
end

# No hang: what a busy machine needs beyond the deadline is far below what a hang takes.
def within_deadline
  begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  told = yield
  took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun
  assert_operator took, :<, DEADLINE + SLOWNESS, "with a deadline of #{DEADLINE} s"
  told
end

# A test with a server of its own.
class ServerTest < Minitest::Test
  def setup
    @server = Server.new
  end

  def teardown
    @server.close
  end

  def client(**options)
    Tidegate::Client.new(@server.url, deadline: LONG, **options)
  end
end
