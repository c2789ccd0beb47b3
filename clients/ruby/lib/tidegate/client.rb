# frozen_string_literal: true

require "json"
require "uri"

module Tidegate
  # Asks a server. One is enough for a process: it is for many threads, and survives a fork.
  class Client
    DEADLINE_S = 0.25
    HOLD_S = 30

    attr_reader :on_failure

    # `server` is by default what TIDEGATE_SERVER has, or else http://127.0.0.1:7400; the token likewise what TIDEGATE_TOKEN
    # has. `on_failure`, :allow or :deny, is what holds when the server does not answer within the deadline. `on_error` is
    # called with an Unreachable whenever a decision is made without the server.
    def initialize(server = nil, token: nil, token_file: nil, deadline: DEADLINE_S, on_failure: :allow, ca_file: nil,
                   on_error: nil)
      uri = URI(server || ENV["TIDEGATE_SERVER"] || "http://127.0.0.1:7400")
      raise ArgumentError, "server #{server} is no address such as http://127.0.0.1:7400" unless uri.is_a?(URI::HTTP)
      raise ArgumentError, "on_failure #{on_failure} is not known; use :allow or :deny" unless %i[allow deny].include?(on_failure)

      raise ArgumentError, "deadline #{deadline} must be above 0, in seconds" unless deadline.positive?

      @connections = Connections.new(uri, ca_file: ca_file)
      @path = uri.path.chomp("/")
      @deadline, @on_failure, @on_error = deadline, on_failure, on_error
      token ||= token_file ? File.read(token_file) : ENV.fetch("TIDEGATE_TOKEN", "")
      @fields = { "Content-Type" => "application/json" }
      @fields["Authorization"] = "Bearer #{token.strip}" unless token.strip.empty?
    end

    # May this happen now? It is charged if so.
    def hit(limiter, key, cost: 1)
      ask(limiter: limiter, key: key, cost: cost)
    end

    # Would a hit be allowed? Nothing is charged.
    def peek(limiter, key, cost: 1)
      ask(limiter: limiter, key: key, cost: cost, peek: true)
    end

    # Any request: `limiter:` and `key:`, or `attributes:` with or without `domain:`; and `cost:`, `peek:`.
    def ask(request)
      decide("/v1/hit", request)
    rescue Unreachable => e
      without_server(e)
    end

    # Up to 1,000 requests in one round trip, each decided by itself: a Decision, or Refused, in its place.
    def hits(requests)
      _, told = exchange("POST", "/v1/hits", { requests: requests }, member: "answers")
      told["answers"].map { |answer| answer.key?("allowed") ? Decision.new(answer) : Refused.new(answer) }
    rescue Unreachable => e
      [without_server(e)] * requests.size
    end

    # Up to 32 requests that are charged together or not at all.
    def hits_together(requests)
      _, told = exchange("POST", "/v1/hits", { requests: requests, together: true }, member: "allowed")
      Together.new(told["allowed"], told["answers"].map { |answer| Decision.new(answer) })
    rescue Unreachable => e
      decision = without_server(e)
      Together.new(decision.allowed?, [decision] * requests.size)
    end

    # A hit whose cost can be corrected, by the decision's `reservation`, for `hold` seconds.
    def reserve(limiter, key, cost: 1, hold: HOLD_S)
      decide("/v1/reserve", { limiter: limiter, key: key, cost: cost, for: "#{(hold * 1000).round}ms" })
    rescue Unreachable => e
      without_server(e)
    end

    # Ends a reservation at its real cost: the rest is given back, or the excess charged. It is sent once.
    def commit(reservation, cost)
      settle(reservation, "POST", "/commit", { cost: cost })
    end

    # Ends a reservation and gives all of it back. It is sent once.
    def cancel(reservation)
      settle(reservation, "DELETE", "")
    end

    # Any other call of the HTTP API: the answer's JSON. Raises Unreachable and Refused.
    def call(method, path, body = nil)
      exchange(method, path, body).last
    end

    # What holds without the server, told to `on_error`.
    def without_server(error)
      tell(error)
      Decision.without_server(@on_failure, error)
    end

    # Closes the connections that are kept. Later calls open others.
    def close
      @connections.close
    end

    private

    # What the application's own callback raises is printed: it must not keep `on_failure` from deciding.
    def tell(error)
      @on_error&.call(error)
    rescue StandardError => e
      warn("tidegate: on_error raised #{e.class}: #{e.message}, told of: #{error.message}")
    end

    def decide(path, body)
      response, told = exchange("POST", path, body, member: "allowed")
      fields = Decision::PASSED_ON.to_h { |name| [name, response[name]] }.compact
      Decision.new(told, fields: fields, problem: told["allowed"] ? nil : response.body)
    end

    def settle(reservation, method, path, body = nil)
      return Settled.new(:nothing) unless reservation

      name = URI.encode_www_form_component(reservation)
      _, told = exchange(method, "/v1/reservations/#{name}#{path}", body, member: "given_back")
      Settled.new(:settled, *told.values_at("cost", "given_back", "excess"))
    rescue Refused => e
      raise unless e.code == "not_reserved"

      Settled.new(:not_reserved)
    rescue Unreachable => e
      tell(e)
      Settled.new(:unknown, nil, nil, nil, e)
    end

    # The response and its JSON. Anything but an answer is a refusal, if the request is at fault, or as good as none. 501 is a
    # refusal, too: this store or this algorithm cannot do it. 408 is none: the request came too slowly.
    def exchange(method, path, body, member: nil)
      request = Net::HTTPGenericRequest.new(method, !body.nil?, true, @path + path, @fields)
      request.body = JSON.generate(body) if body
      response = @connections.exchange(request, @deadline)
      told = parse(response.body)
      return response, told if [200, 429].include?(response.code.to_i) && told && (member.nil? || told.key?(member))

      is_refusal = (response.code.to_i.between?(400, 499) && response.code != "408") || response.code == "501"
      raise Refused, told if is_refusal && told&.key?("code")

      raise Unreachable, "the answer is no decision: #{response.code} #{response.body.to_s[0, 200]}"
    end

    def parse(text)
      told = JSON.parse(text.to_s)
      told if told.is_a?(Hash)
    rescue JSON::ParserError
      nil
    end
  end
end
