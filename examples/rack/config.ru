# frozen_string_literal: true

# A Rack application behind Tidegate: every request by address, and log-ins by user and address.
#
#   tidegate serve
#   rackup -I ../../clients/ruby/lib --port 8000
#   curl -i http://127.0.0.1:8000/          # the sixth in a row is a 429
#
# In Rails the first `use` is config.middleware.use in config/application.rb, and the controller has what `create` has here.
require "tidegate/rack"

GATE = Tidegate::Client.new # TIDEGATE_SERVER, or http://127.0.0.1:7400

# A controller, with what Rails would give it.
class SessionsController
  def initialize(env)
    @request = Rack::Request.new(env)
  end

  # Both must allow, and both are charged or neither.
  def create
    user = @request.params.fetch("user")
    decision = GATE.ask(domain: "login", attributes: { user: user, ip: @request.ip })
    return [decision.status, answer_headers(decision, "application/problem+json"), [decision.body]] unless decision.allowed?

    [200, answer_headers(decision, "text/plain"), ["welcome, #{user}"]]
  end

  private

  def answer_headers(decision, type)
    decision.headers.transform_keys(&:downcase).merge("content-type" => type)
  end
end

# Health checks are not limited.
use Tidegate::RateLimit, GATE, legacy_headers: true do |env|
  { limiter: "api", key: Rack::Request.new(env).ip } unless env["PATH_INFO"] == "/health"
end

map("/health") { run ->(_env) { [200, { "content-type" => "text/plain" }, ["ok"]] } }
map("/login") { run ->(env) { SessionsController.new(env).create } }
run ->(_env) { [200, { "content-type" => "text/plain" }, ["welcome"]] }
