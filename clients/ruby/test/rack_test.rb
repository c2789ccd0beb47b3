# frozen_string_literal: true

require "rack"
require "rack/lint"
require "rack/mock_request" if Rack.release >= "3"
require_relative "server"

# The middleware, before an application that tells whether it was reached; Rack::Lint looks at both.
class RackTest < ServerTest
  def test_allowed_then_denied
    3.times do |number|
      answer = get("u1", legacy_headers: number == 2)
      assert_equal [200, "welcome"], [answer.status, answer.body]
      assert_equal '"api";q=3;w=3600', answer["ratelimit-policy"]
      assert_match(/\A"api";r=#{2 - number};t=/, answer["ratelimit"])
      assert_equal "mine", answer["x-ratelimit-reset"], "the application's own"
      assert_equal number == 2, answer.headers.key?("x-ratelimit-remaining")
    end
    answer = get("u1")
    assert_equal [429, "application/problem+json"], [answer.status, answer["content-type"]]
    assert_includes 1000..1200, answer["retry-after"].to_i
    assert_includes answer.body, "#quota-exceeded"
    answer = get(nil)
    assert_equal [200, nil], [answer.status, answer["ratelimit"]], "not asked"
  end

  def test_without_a_server
    @server.kill
    assert_equal 200, within_deadline { get("u1", deadline: DEADLINE) }.status
    answer = within_deadline { get("u1", deadline: DEADLINE, on_failure: :deny) }
    assert_equal [503, "1"], [answer.status, answer["retry-after"]]
    assert_includes answer.body, "#temporary-reduced-capacity"
    @server.start
  end

  def test_a_denied_head_has_no_body
    answer = get("h", method: "HEAD", cost: 9)
    assert_equal [429, ""], [answer.status, answer.body]
    assert_operator answer["content-length"].to_i, :>, 0
  end

  def test_only_failures
    told = statuses(:failures, [200, 302, 200, 201, 401, 200, :raise, :stream, 200])
    assert_equal [200, 302, 200, 201, 401, 200, :raised, :raised, 429], told
  end

  def test_only_successes
    told = statuses(:successes, [500, :raise, 404, :stream, 400, 200, 500, 201, 302, 500])
    assert_equal [500, :raised, 404, :raised, 400, 200, 500, 201, 302, 429], told
  end

  def test_counting_without_a_server
    @server.kill
    assert_equal [401], statuses(:failures, [401], deadline: DEADLINE)
    assert_equal [503], statuses(:failures, [401], deadline: DEADLINE, on_failure: :deny)
    @server.start
  end

  def test_what_cannot_be_counted_so
    assert_raises(ArgumentError) { Tidegate::RateLimit.new(nil, client, count: :some) { nil } }
    limited = Tidegate::RateLimit.new(nil, client, count: :failures) { { attributes: { user: "u" } } }
    assert_raises(ArgumentError) { limited.call({}) }
  end

  def test_a_name_that_is_no_key_is_not_let_in
    assert_raises(Tidegate::Refused) { get("u" * 513, on_failure: :allow) }
  end

  private

  # Rack 2 takes names in any case, Rack 3 in lower case only.
  OWN = Rack.release >= "3" ? "x-ratelimit-reset" : "x-RateLimit-Reset"

  def get(user, method: "GET", cost: 1, legacy_headers: false, deadline: LONG, **options)
    gate = Tidegate::Client.new(@server.url, deadline: deadline, **options)
    welcome = Rack::Lint.new(->(_) { [200, { "content-type" => "text/plain", OWN => "mine" }, ["welcome"]] })
    limited = Tidegate::RateLimit.new(welcome, gate, legacy_headers: legacy_headers) do |env|
      { limiter: "api", key: env["HTTP_X_USER"], cost: cost } if env["HTTP_X_USER"]
    end
    Rack::MockRequest.new(Rack::Lint.new(limited)).request(method, "/", user ? { "HTTP_X_USER" => user } : {})
  end

  # What a visitor gets whose requests the application answers so; :stream raises in the middle of its body.
  def statuses(count, wanted, deadline: LONG, **options)
    gate = Tidegate::Client.new(@server.url, deadline: deadline, **options)
    wanted.map do |status|
      app = lambda do |env|
        raise IOError, "its own" if status == :raise

        assert env["tidegate.decision"].allowed?
        body = status == :stream ? Enumerator.new { |parts| parts << "to" and raise IOError, "its own" } : ["told"]
        [status == :stream ? 200 : status, { "content-type" => "text/plain" }, body]
      end
      limited = Tidegate::RateLimit.new(Rack::Lint.new(app), gate, count: count) { { limiter: "api", key: count.to_s } }
      serve(limited)
    end
  end

  # As servers do: whatever happens, the body is closed.
  def serve(app)
    status, _, body = Rack::Lint.new(app).call(Rack::MockRequest.env_for("/"))
    begin
      body.each { |part| part }
    ensure
      body.close
    end
    status
  rescue IOError
    :raised
  end
end
