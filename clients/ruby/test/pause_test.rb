# frozen_string_literal: true

require_relative "server"

# The words of Pause, as its users have them in their applications.
class PauseTest < ServerTest
  class UserNotificationLimiter < Tidegate::Pause::Action
    scope "un"
    check period_seconds: 120, max_allowed: 1, block_ttl: 240
    check period_seconds: 86_400, max_allowed: 3
    check 7 * 86_400, 7
  end

  def setup
    super
    Tidegate::Pause.configure do |config|
      config.gate = client
      config.resolution = 60
      config.history = 7 * 86_400
    end
  end

  def test_ok_increment_and_analyze
    action = UserNotificationLimiter.new(:thing)
    assert_nil action.analyze
    assert action.ok?
    action.increment!
    event = action.analyze
    assert_equal ["thing", 1], [event.identifier, event.sum]
    assert_equal [120, 1, 240], event.period_check.to_a
    assert_in_delta event.timestamp + 240, event.blocked_until, 0.001
    assert action.rate_limited?
    refute action.ok?
    assert UserNotificationLimiter.new("another").ok?
  end

  def test_blocks_of_code
    said = []
    2.times do
      UserNotificationLimiter.new("a/b|c ü") do
        unless_rate_limited { said << "sent" }
        if_rate_limited { |event| said << event.identifier }
      end
    end
    assert_equal ["sent", "a/b|c ü", "a/b|c ü"], said
    assert_raises(RuntimeError) { UserNotificationLimiter.new("x").unless_rate_limited { raise "failed" } }
    assert UserNotificationLimiter.new("x").ok?, "what failed is not counted"
  end

  def test_counts_and_times
    old = UserNotificationLimiter.new("old")
    old.increment!(2, Time.now.to_i - 3600)
    assert old.ok?, "two in a day, and none in the last minutes"
    old.increment!(5, Time.now.to_i - 3600)
    assert_equal 86_400, old.analyze.period_check.period_seconds
  end

  def test_unblocking_and_listing
    one, two = %w[one two].map { |name| UserNotificationLimiter.new(name) }
    [one, two].each { |action| action.increment! && action.ok? }
    UserNotificationLimiter.new("three").block_for(60)
    assert_equal %w[one three two], UserNotificationLimiter.rate_limited_identifiers.sort
    assert_equal %w[one two], UserNotificationLimiter.tracked_identifiers.sort & %w[one two]
    assert one.unblock
    refute one.unblock
    assert one.ok?
    assert_equal 2, UserNotificationLimiter.unblock_all
    assert two.ok?
  end

  def test_enabling_and_disabling
    action = UserNotificationLimiter.new("e")
    action.increment!
    UserNotificationLimiter.disable
    assert UserNotificationLimiter.disabled?
    assert action.ok?, "a disabled limiter allows"
    UserNotificationLimiter.enable
    assert UserNotificationLimiter.enabled?
    refute action.ok?
  end

  def test_the_policy_is_one
    file = @server.path("policy.toml")
    File.write(file, UserNotificationLimiter.policy)
    said, status = Open3.capture2e(TIDEGATE, "validate", file)
    assert_predicate status, :success?, said
  end

  def test_without_a_server
    @server.kill
    Tidegate::Pause.config.gate = Tidegate::Client.new(@server.url, deadline: DEADLINE)
    said = []
    within_deadline { assert UserNotificationLimiter.new("u").ok? }
    UserNotificationLimiter.new("u").unless_rate_limited { said << "sent" }
    assert_equal ["sent"], said
    Tidegate::Pause.config.gate = Tidegate::Client.new(@server.url, deadline: DEADLINE, on_failure: :deny)
    within_deadline { assert UserNotificationLimiter.new("u").rate_limited? }
    assert_raises(Tidegate::Unreachable) { UserNotificationLimiter.new("u").increment! }
    assert_raises(Tidegate::Unreachable) { UserNotificationLimiter.unblock_all }
    @server.start
  end
end
