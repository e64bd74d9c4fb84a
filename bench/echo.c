// SPDX-License-Identifier: GPL-2.0
/*
 * A TCP echo server on loopback that forces every receive and send through
 * io-wq with four workers, and a client in another process that keeps a packet
 * in flight on each of its connections.  It measures how fast io-wq gets rid
 * of requests that it has finished.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>

#include "common.h"

#define CONNECTIONS	8
#define PACKET_SIZE	2000
#define WORKERS		4
#define REQUESTS	400	/* in a round, at scale 1 */

struct packet {
	__u32 connection;
	__u32 sequence;
	char fill[PACKET_SIZE - 2 * sizeof(__u32)];
};

struct connection {
	int server;			/* the sockets of its two ends */
	int client;
	int sending;			/* what the server waits for */
	__u32 sequence;
	struct packet packet;
};

struct server {
	const char *name;
	struct io_uring ring;
	struct connection connections[CONNECTIONS];
	unsigned int open;		/* connections */
	unsigned int queued;		/* SQEs not submitted yet */
	unsigned int echoed;
	unsigned int requests;		/* in a round */
	double stamps[ROUNDS + 2];	/* the first round is the warm-up */
	pid_t client;
};

static double scale = 1;

/* The client: one thread, so that it leaves the machine to the server. */

/* What the client exits with if the server closed a connection. */
#define SERVER_CLOSED	2

_Noreturn static void client_failed(const char *call, unsigned int i,
				    ssize_t ret)
{
	/* A server that dies has a message of its own. */
	if (ret >= 0 || errno == ECONNRESET || errno == EPIPE)
		_exit(SERVER_CLOSED);
	die("client: connection %u: %s: %s", i, call, strerror(errno));
}

static void client_send(struct server *server, unsigned int i,
			unsigned int *sent)
{
	struct connection *connection = &server->connections[i];
	ssize_t ret;

	if (*sent == server->requests * (ROUNDS + 1))
		return;
	(*sent)++;
	connection->packet.sequence = connection->sequence++;
	ret = send(connection->client, &connection->packet, PACKET_SIZE,
		   MSG_NOSIGNAL);
	if (ret != PACKET_SIZE)
		client_failed("send", i, ret);
}

static void client_receive(struct server *server, unsigned int i)
{
	struct connection *connection = &server->connections[i];
	struct packet packet;
	ssize_t ret;

	ret = recv(connection->client, &packet, PACKET_SIZE, MSG_WAITALL);
	if (ret != PACKET_SIZE)
		client_failed("recv", i, ret);
	if (memcmp(&packet, &connection->packet, PACKET_SIZE))
		die("client: connection %u: got packet %u:%u, not its own %u",
		    i, packet.connection, packet.sequence,
		    connection->packet.sequence);
}

static void run_client(struct server *server)
{
	unsigned int total = server->requests * (ROUNDS + 1);
	unsigned int i, sent = 0, received = 0;
	struct pollfd polled[CONNECTIONS];

	for (i = 0; i < CONNECTIONS; i++) {
		struct connection *connection = &server->connections[i];

		close(connection->server);
		polled[i].fd = connection->client;
		polled[i].events = POLLIN;
		connection->packet.connection = i;
		memset(connection->packet.fill, 'a' + i,
		       sizeof(connection->packet.fill));
		client_send(server, i, &sent);
	}
	while (received < total) {
		if (poll(polled, CONNECTIONS, -1) < 0)
			die("client: poll: %s", strerror(errno));
		for (i = 0; i < CONNECTIONS; i++) {
			if (!polled[i].revents)
				continue;
			client_receive(server, i);
			received++;
			client_send(server, i, &sent);
		}
	}
}

static void start_client(struct server *server)
{
	unsigned int i;

	server->client = fork();
	if (server->client < 0)
		die("fork: %s", strerror(errno));
	if (!server->client) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run_client(server);
		_exit(0);
	}
	for (i = 0; i < CONNECTIONS; i++)
		close(server->connections[i].client);
}

static void end_client(struct server *server)
{
	int status;

	if (waitpid(server->client, &status, 0) != server->client)
		die("waitpid: %s", strerror(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == SERVER_CLOSED)
		die("the client lost a connection or part of a packet");
	/* Otherwise it has said why. */
	if (WIFEXITED(status) && WEXITSTATUS(status))
		exit(1);
	if (WIFSIGNALED(status))
		die("the client was killed by signal %d", WTERMSIG(status));
}

/* The server. */

static int make_socket(void)
{
	int sock = socket(AF_INET, SOCK_STREAM, 0);

	if (sock < 0)
		die("socket: %s", strerror(errno));
	return sock;
}

static void no_delay(int sock)
{
	int on = 1;

	if (setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		die("TCP_NODELAY: %s", strerror(errno));
}

/* Connects both ends before the client is forked: nobody waits for a peer. */
static void make_connections(struct server *server)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t size = sizeof(address);
	int listener = make_socket();
	unsigned int i;

	if (bind(listener, (struct sockaddr *)&address, size) ||
	    listen(listener, CONNECTIONS) ||
	    getsockname(listener, (struct sockaddr *)&address, &size))
		die("listen on loopback: %s", strerror(errno));
	for (i = 0; i < CONNECTIONS; i++) {
		struct connection *connection = &server->connections[i];

		connection->client = make_socket();
		if (connect(connection->client, (struct sockaddr *)&address,
			    size))
			die("connect to loopback: %s", strerror(errno));
		connection->server = accept(listener, NULL, NULL);
		if (connection->server < 0)
			die("accept: %s", strerror(errno));
		no_delay(connection->client);
		no_delay(connection->server);
	}
	close(listener);
}

static void queue(struct server *server, unsigned int i, int sending)
{
	struct connection *connection = &server->connections[i];
	struct io_uring_sqe *sqe = get_sqe(&server->ring);

	if (sending)
		io_uring_prep_send(sqe, connection->server,
				   &connection->packet, PACKET_SIZE,
				   MSG_WAITALL | MSG_NOSIGNAL);
	else
		io_uring_prep_recv(sqe, connection->server,
				   &connection->packet, PACKET_SIZE,
				   MSG_WAITALL);
	sqe->flags |= IOSQE_ASYNC;
	io_uring_sqe_set_data64(sqe, i);
	connection->sending = sending;
	server->queued++;
}

static void check_packet(struct server *server, unsigned int i)
{
	struct connection *connection = &server->connections[i];
	struct packet *packet = &connection->packet;

	if (packet->connection != i ||
	    packet->sequence != connection->sequence++)
		die("connection %u: got packet %u:%u, not %u:%u", i,
		    packet->connection, packet->sequence, i,
		    connection->sequence - 1);
}

static void count_echo(struct server *server)
{
	if (++server->echoed % server->requests == 0)
		server->stamps[server->echoed / server->requests] = now_ns();
}

static void handle(struct server *server, const struct io_uring_cqe *cqe)
{
	struct connection *connection;
	__u64 i = cqe->user_data;

	if (i >= CONNECTIONS)
		die("a CQE of no connection, user_data %llu",
		    (unsigned long long)i);
	connection = &server->connections[i];
	if (!cqe->res && !connection->sending) {
		server->open--;
		return;
	}
	if (cqe->res != PACKET_SIZE) {
		/* Where the client failed, its message is enough. */
		if (cqe->res == -ECONNRESET || cqe->res == -EPIPE)
			end_client(server);
		die("connection %llu: %s returned %d, not %d",
		    (unsigned long long)i,
		    connection->sending ? "send" : "recv", cqe->res,
		    PACKET_SIZE);
	}
	if (connection->sending)
		count_echo(server);
	else
		check_packet(server, i);
	queue(server, i, !connection->sending);
}

static void submit_and_wait(struct server *server)
{
	int ret = io_uring_submit_and_wait(&server->ring, 1);

	/* Interrupted before it submitted anything. */
	if (ret == -EINTR)
		return;
	if (ret < 0)
		die("submission: %s", strerror(-ret));
	if ((unsigned int)ret != server->queued)
		die("submitted %d requests of %u", ret, server->queued);
	server->queued = 0;
}

static void serve(struct server *server)
{
	struct io_uring_cqe *cqe;
	unsigned int head, seen;

	while (server->open) {
		submit_and_wait(server);
		seen = 0;
		io_uring_for_each_cqe(&server->ring, head, cqe) {
			handle(server, cqe);
			seen++;
		}
		io_uring_cq_advance(&server->ring, seen);
	}
}

static void report(struct server *server)
{
	double rates[ROUNDS];
	unsigned int i;

	for (i = 0; i < ROUNDS; i++)
		rates[i] = server->requests * 1e9 /
			   (server->stamps[i + 2] - server->stamps[i + 1]);
	printf("echo,%dx%d forced async %s,req/s,%.0f\n", CONNECTIONS,
	       PACKET_SIZE, server->name, median(rates));
}

static void run_case(const void *arg)
{
	struct server server = { .name = arg, .open = CONNECTIONS };
	/* Sockets are unbounded work; the other limit only has to be set. */
	unsigned int workers[2] = { WORKERS, WORKERS };
	unsigned int i;
	int ret;

	server.requests = scaled(REQUESTS, scale);
	make_connections(&server);
	start_client(&server);
	ring_init(&server.ring, 2 * CONNECTIONS, server.name);
	ret = io_uring_register_iowq_max_workers(&server.ring, workers);
	if (ret)
		die("limit of workers: %s", strerror(-ret));
	for (i = 0; i < CONNECTIONS; i++)
		queue(&server, i, 0);
	serve(&server);
	end_client(&server);
	if (server.echoed != server.requests * (ROUNDS + 1))
		die("echoed %u packets of %u", server.echoed,
		    server.requests * (ROUNDS + 1));
	report(&server);
	io_uring_queue_exit(&server.ring);
}

_Noreturn static void usage(void)
{
	fprintf(stderr,
		"usage: echo [-n SCALE]\n"
		"  -n SCALE  scale the fixed counts, by 0.5 or 50%%, say\n");
	exit(2);
}

int main(int argc, char **argv)
{
	int option;

	while ((option = getopt(argc, argv, "n:")) != -1) {
		if (option != 'n')
			usage();
		scale = parse_scale(optarg);
	}
	if (argv[optind])
		usage();
	run_alone("default", run_case, "default", scale);
	run_alone("DEFER_TASKRUN", run_case, "DEFER_TASKRUN", scale);
	return 0;
}
