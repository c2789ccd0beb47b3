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

  def test_a_name_that_is_no_key_is_not_let_in
    assert_raises(Tidegate::Refused) { get("u" * 513, on_failure: :allow) }
  end

  private

  def get(user, legacy_headers: false, deadline: LONG, **options)
    gate = Tidegate::Client.new(@server.url, deadline: deadline, **options)
    welcome = Rack::Lint.new(->(_) { [200, { "content-type" => "text/plain", "x-RateLimit-Reset" => "mine" }, ["welcome"]] })
    limited = Tidegate::RateLimit.new(welcome, gate, legacy_headers: legacy_headers) do |env|
      { limiter: "api", key: env["HTTP_X_USER"] } if env["HTTP_X_USER"]
    end
    Rack::MockRequest.new(Rack::Lint.new(limited)).get("/", user ? { "HTTP_X_USER" => user } : {})
  end
end
