# frozen_string_literal: true

require_relative "server"

# Costs that are known later.
class ReserveTest < ServerTest
  def test_less_more_and_nothing
    gate = client
    held = gate.reserve("hundred", "u1", cost: 40)
    assert_equal [true, 60], [held.allowed?, held.remaining]
    assert_equal [:settled, 15, 25, 0, nil], gate.commit(held.reservation, 15).to_a
    assert_equal :not_reserved, gate.commit(held.reservation, 15).outcome, "it had ended"
    assert_equal 2, gate.commit(gate.reserve("hundred", "u1", cost: 5, hold: 60).reservation, 7).excess
    assert_equal 70, gate.cancel(gate.reserve("hundred", "u1", cost: 70).reservation).given_back
    assert_equal 78, gate.peek("hundred", "u1").remaining
    denied = gate.reserve("hundred", "u1", cost: 79)
    assert_equal [false, nil], [denied.allowed?, denied.reservation]
    assert_equal :nothing, gate.cancel(denied.reservation).outcome
  end

  def test_what_the_server_refuses
    assert_raises(Tidegate::Refused) { client.reserve("unknown", "u1") }
    assert_raises(Tidegate::Refused) { client.reserve("hundred", "u1", hold: -1) }
    assert_raises(Tidegate::Refused) { client.cancel("no/such name?") }
  end

  def test_without_a_server
    errors = []
    @server.kill
    open = Tidegate::Client.new(@server.url, deadline: DEADLINE, on_error: errors.method(:push))
    closed = Tidegate::Client.new(@server.url, deadline: DEADLINE, on_failure: :deny)
    assert within_deadline { open.reserve("hundred", "u1") }.allowed?
    refute within_deadline { closed.reserve("hundred", "u1") }.allowed?
    told = within_deadline { open.cancel("R") }
    assert_equal [:unknown, errors.last, 2], [told.outcome, told.error, errors.size]
    @server.start
  end

  def test_an_end_is_never_sent_twice
    odd_server(->(_) {}) do |url, read|
      gate = Tidegate::Client.new(url, deadline: LONG)
      assert_equal %i[unknown unknown], [gate.cancel("R").outcome, gate.commit("R", 1).outcome]
      assert_equal ["DELETE /v1/reservations/R", "POST /v1/reservations/R/commit"], read.map { |text| text[/.* (?=HTTP)/].strip }
    end
  end

  # Net::HTTP sends a DELETE again when a connection that it used before breaks, unless it is told not to.
  def test_nor_over_a_connection_that_was_used_before
    ends = []
    serve = lambda do |connection|
      connection.write("HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{\"allowed\":true,\"reason\":\"ok\"}")
      ends << read_request(connection)
    end
    odd_server(serve) do |url, read|
      gate = Tidegate::Client.new(url, deadline: LONG)
      gate.hit("api", "u1")
      assert_equal :unknown, gate.cancel("R").outcome
      assert_equal [1, 1], [read.size, ends.size], "the hit, and one end"
    end
  end
end
