# frozen_string_literal: true

require "json"

module Tidegate
  # The server's answer, or one made by `on_failure` when there was none; then `error` says why.
  class Decision
    PASSED_ON = %w[RateLimit-Policy RateLimit Retry-After].freeze
    RETRY_AFTER_FAILURE_MS = 1000

    attr_reader :reason, :limiter, :limit, :remaining, :retry_after_ms, :reset_after_ms, :degraded, :fields, :error,
                :reservation

    # `reservation`, of a `reserve`, names it for `commit` and `cancel`; nil where there is nothing to give back.
    # `fields` are RateLimit, RateLimit-Policy and Retry-After as the server sent them, `problem` the body of a denial.
    def initialize(told, fields: {}, problem: nil, error: nil)
      @allowed, @reason, @limiter, @degraded = told.values_at("allowed", "reason", "limiter", "degraded")
      @limit, @remaining = told.values_at("limit", "remaining")
      @retry_after_ms, @reset_after_ms = told.values_at("retry_after_ms", "reset_after_ms")
      @reservation = told["reservation"]
      @fields, @problem, @error = fields, problem, error
    end

    def self.without_server(on_failure, error)
      allowed = on_failure == :allow
      wait = allowed ? nil : RETRY_AFTER_FAILURE_MS
      new({ "allowed" => allowed, "reason" => "unreachable", "retry_after_ms" => wait }, error: error)
    end

    def allowed?
      @allowed
    end

    # The HTTP status of a denial: 429, or 503 when it was made without the server.
    def status
      error ? 503 : 429
    end

    # The header fields for the application's own answer; `legacy` adds `X-RateLimit-*`.
    def headers(legacy: false)
      told = fields.dup
      told["Retry-After"] ||= seconds(retry_after_ms) if !allowed? && retry_after_ms
      return told unless legacy && limit && remaining

      wait = allowed? ? reset_after_ms : retry_after_ms
      told["X-RateLimit-Limit"] = limit.to_s
      told["X-RateLimit-Remaining"] = remaining.to_s
      told["X-RateLimit-Reset"] = seconds(wait) if wait
      told
    end

    # The body of a denial, as application/problem+json.
    def body
      return @problem if @problem

      kind, title =
        if error
          ["temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints"]
        else
          ["quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"]
        end
      JSON.generate(type: "https://iana.org/assignments/http-problem-types##{kind}", title: title, status: status)
    end

    private

    # Rounded up: never tell a client to come too early.
    def seconds(milliseconds)
      milliseconds.fdiv(1000).ceil.to_s
    end
  end

  # Several requests that were charged together, if allowed, or not at all.
  Together = Struct.new(:allowed, :answers) do
    alias_method :allowed?, :allowed
  end

  # What became of a `commit` or a `cancel`. `outcome` is :settled, the rest is given back; :not_reserved, it had ended before, and
  # what it had charged stays; :nothing, there was no reservation, and nothing was sent; or :unknown, no answer came, and
  # `error` says why.
  Settled = Struct.new(:outcome, :cost, :given_back, :excess, :error)
end
