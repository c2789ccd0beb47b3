# frozen_string_literal: true

require_relative "server"

# What the server answers.
class AnswersTest < ServerTest
  def test_hits_are_charged_until_the_limit
    gate = client
    assert_equal 3, gate.peek("api", "u1").remaining
    assert_equal 2, gate.hit("api", "u1").remaining
    last = gate.hit("api", "u1", cost: 2)
    assert_equal({ "RateLimit-Policy" => '"api";q=3;w=3600', "RateLimit" => '"api";r=0;t=3600' }, last.headers)
    denied = gate.hit("api", "u1")
    assert_equal [false, "limited", "api", 429], [denied.allowed?, denied.reason, denied.limiter, denied.status]
    assert_includes 1_000_000..1_200_000, denied.retry_after_ms
    assert_includes denied.body, '"violated-policies":["api"]'
    legacy = denied.headers(legacy: true)
    assert_equal ["3", "0", legacy["Retry-After"]], legacy.values_at(*%w[X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset])
  end

  def test_attributes_are_charged_together
    gate = client
    told = %w[a a a b c].map { |user| gate.ask(domain: "login", attributes: { user: user, ip: "192.0.2.1" }) }
    assert_equal [true, true, false, true, false], told.map(&:allowed?)
    assert_equal %w[login-user login-ip], told.values_at(2, 4).map(&:limiter)
  end

  def test_batches
    gate = client
    told = gate.hits([{ limiter: "api", key: "b" }, { limiter: "unknown", key: "b" }, { limiter: "api", key: "b", cost: 9 }])
    assert_equal [2, false], [told[0].remaining, told[2].allowed?]
    assert_equal "unknown_limiter", told[1].code
    both = [{ limiter: "api", key: "t", cost: 2 }, { limiter: "hundred", key: "t" }]
    assert_equal [true, false], Array.new(2) { gate.hits_together(both).allowed? }
    assert_equal 99, gate.peek("hundred", "t").remaining, "nothing was charged by the second"
  end

  def test_what_the_server_refuses_is_never_allowed
    gate = client(on_failure: :allow)
    [%w[unknown u1], ["api", "k" * 513], ["api", ""]].each do |limiter, key|
      assert_raises(Tidegate::Refused) { gate.hit(limiter, key) }
    end
    assert gate.hit("api", "u1").allowed?, "the connection is still good"
  end

  def test_many_threads_over_connections_that_are_used_again
    gate = client
    told = Array.new(8) { Thread.new { Array.new(20) { gate.hit("hundred", "many").allowed? } } }.flat_map(&:value)
    assert_equal 100, told.count(true)
    before = opened
    20.times { gate.hit("hundred", "again") }
    assert_equal 1, opened - before, "for the metrics"
  end

  def test_a_forked_process_has_connections_of_its_own
    gate = client
    gate.hit("hundred", "fork")
    child = fork { exit!(Array.new(20) { gate.hit("hundred", "fork").allowed? }.all?) }
    assert(Array.new(20) { gate.hit("hundred", "fork").allowed? }.all?)
    assert_predicate Process.wait2(child).last, :success?
    assert_equal 59, gate.peek("hundred", "fork").remaining
  end

  def test_settings_that_make_no_sense
    assert_raises(ArgumentError) { Tidegate::Client.new("gate.example") }
    assert_raises(ArgumentError) { Tidegate::Client.new(@server.url, on_failure: :maybe) }
    assert_raises(ArgumentError) { Tidegate::Client.new(@server.url, deadline: 0) }
  end

  private

  def opened
    Net::HTTP.get(URI("#{@server.url}/metrics"))[/^tidegate_http_connections_total (\d+)/, 1].to_i
  end
end

# Who may ask.
class AccessTest < Minitest::Test
  def test_a_token_is_shown
    server = Server.new(tokens: true)
    ask = ->(**options) { Tidegate::Client.new(server.url, deadline: LONG, **options).hit("hundred", "u1") }
    assert ask.call(token: server.token).allowed?
    assert ask.call(token_file: server.path("token")).allowed?
    assert_equal 401, assert_raises(Tidegate::Refused) { ask.call(token: "tg_wrong") }.status
    ENV["TIDEGATE_TOKEN"] = server.token
    assert ask.call.allowed?
  ensure
    ENV.delete("TIDEGATE_TOKEN")
    server.close
  end

  def test_https
    server = Server.new(tls: true)
    trusting = Tidegate::Client.new(server.url, deadline: LONG, ca_file: server.path("cert.pem"))
    assert_equal([99, 98], Array.new(2) { trusting.hit("hundred", "u1").remaining })
    strict = Tidegate::Client.new(server.url, deadline: LONG, on_failure: :deny)
    assert_equal "unreachable", strict.hit("hundred", "u1").reason, "nobody vouches for it"
  ensure
    server.close
  end
end

# What holds when the server does not answer.
class FailuresTest < ServerTest
  def test_killed_and_restarted
    errors = []
    open = client(deadline: DEADLINE, on_error: errors.method(:push))
    closed = client(deadline: DEADLINE, on_failure: :deny)
    # What the machine needs to begin with is not the server's time to answer.
    [open, closed].each { |gate| gate.hit("hundred", "k") }
    errors.clear
    @server.kill
    3.times do
      told = within_deadline { open.hit("hundred", "k") }
      assert_equal [true, "unreachable", nil], [told.allowed?, told.reason, told.limit]
      told = within_deadline { closed.hit("hundred", "k") }
      assert_equal [false, 503, { "Retry-After" => "1" }], [told.allowed?, told.status, told.headers]
      assert_includes told.body, "#temporary-reduced-capacity"
    end
    assert_equal 3, errors.grep(Tidegate::Unreachable).size
    assert_equal [false, false], closed.hits([{ limiter: "api", key: "k" }] * 2).map(&:allowed?)
    @server.start
    [open, closed].each { |gate| assert_equal 100, answered(gate).limit }
  end

  def test_a_refused_connection_is_tried_again
    gate = client(on_failure: :deny)
    @server.kill
    restart = Thread.new { sleep(0.2) and @server.start }
    assert gate.hit("hundred", "r").allowed?
    restart.join
  end

  def test_stopped_it_is_no_hang_and_nothing_is_charged_twice
    gate, calm = client(deadline: DEADLINE, on_failure: :deny), client
    gate.hit("hundred", "s")
    before = calm.peek("hundred", "s").remaining
    @server.stopped do
      3.times { assert_equal "unreachable", within_deadline { gate.hit("hundred", "s") }.reason }
    end
    sleep(0.2) # for what lies in sockets to be read, if it is
    assert_operator calm.peek("hundred", "s").remaining, :>=, before - 3
  end

  def test_an_answer_that_never_ends_is_no_hang
    drip = lambda do |connection|
      connection.write("HTTP/1.1 200 OK\r\nX-Slow: ")
      loop { connection.write("x") and sleep(0.02) }
    end
    odd_server(drip) do |url, _|
      gate = Tidegate::Client.new(url, deadline: DEADLINE, on_failure: :deny)
      assert_equal "unreachable", within_deadline { gate.hit("api", "u1") }.reason
    end
  end

  def test_a_name_that_is_not_looked_up_in_time_is_no_hang
    begun = Queue.new
    Addrinfo.stub(:getaddrinfo, ->(*) { begun.push(nil) and sleep(LONG) }) do
      gate = Tidegate::Client.new("http://gate.example", deadline: DEADLINE, on_failure: :deny)
      asking = Array.new(20) { Thread.new { within_deadline { gate.hit("api", "u1") } } }
      assert(asking.all? { |thread| thread.value.reason == "unreachable" })
      assert_equal Tidegate::Connections::LOOKUPS_MAX, begun.size, "those that hang do not pile up"
    end
  end

  # Where `localhost` is ::1 first, a server at 127.0.0.1 was never reached, and everything allowed.
  def test_every_address_of_a_name_is_tried
    port = URI(@server.url).port
    [%w[::1 127.0.0.1], %w[127.0.0.2 127.0.0.1]].each do |addresses|
      with_addresses(addresses, port) do
        gate = Tidegate::Client.new("http://localhost:#{port}", deadline: LONG, on_failure: :deny)
        assert_equal 100, gate.hit("hundred", "u1").limit
      end
    end
  end

  # An address that is silent has its share of the deadline, and the next one the rest.
  def test_an_address_that_does_not_answer_leaves_time_for_the_next
    port = URI(@server.url).port
    full = Socket.new(:INET, :STREAM)
    full.bind(Addrinfo.tcp("127.0.0.3", port))
    full.listen(0) # takes one connection or two, and the next ones wait
    held = Array.new(4) { Socket.new(:INET, :STREAM).tap { |each| each.connect_nonblock(full.local_address, exception: false) } }
    with_addresses(%w[127.0.0.3 127.0.0.1], port) do
      gate = Tidegate::Client.new("http://localhost:#{port}", deadline: 4 * SLOWNESS, on_failure: :deny)
      assert_equal 100, gate.hit("hundred", "u1").limit
    end
  ensure
    [full, *held].compact.each(&:close)
  end

  def test_a_callback_that_raises_does_not_decide
    @server.kill
    gate = client(deadline: DEADLINE, on_error: ->(_) { raise "its own fault" })
    _, printed = capture_io { assert gate.hit("hundred", "u1").allowed? }
    assert_includes printed, "its own fault"
    @server.start
  end

  def test_what_was_sent_is_never_sent_again
    odd_server(->(_) {}) do |url, read|
      assert_equal "unreachable", Tidegate::Client.new(url, deadline: LONG).hit("api", "u1").reason
      assert_equal 1, read.size
    end
  end

  def test_answers_that_are_no_decision
    ["502 Bad Gateway\r\nContent-Length: 3\r\n\r\nno!", "200 OK\r\nContent-Length: 2\r\n\r\n[]",
     "302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"].each do |answer|
      odd_server(->(connection) { connection.write("HTTP/1.1 #{answer}") }) do |url, read|
        assert_equal "unreachable", Tidegate::Client.new(url, deadline: LONG).hit("api", "u1").reason
        assert_equal 1, read.size
      end
    end
  end

  private

  def client(deadline: LONG, **options)
    Tidegate::Client.new(@server.url, deadline: deadline, **options)
  end

  # `localhost` has these addresses; connecting to one of them looks that up, too.
  def with_addresses(addresses, port, &block)
    found, known = addresses.map { |address| Addrinfo.tcp(address, port) }, Addrinfo.method(:getaddrinfo)
    look_up = ->(name, *rest, **named) { name == "localhost" ? found : known.call(name, *rest, **named) }
    Addrinfo.stub(:getaddrinfo, look_up, &block)
  end

  # By the server, which may be slow to begin with.
  def answered(gate)
    20.times do
      told = gate.hit("hundred", "again")
      return told unless told.error
    end
  end
end
